"""What the steps of one run share."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import EpisodeError
from agent_env_core.models import ModelSettings
from agent_env_core.steps.placed import File, PlacedSandbox, PlacedSkill, Places

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle, Env
    from agent_env_core.envs.data import Seeds
    from agent_env_core.envs.deployment import Deployment, DeployOptions
    from agent_env_core.envs.triggers import Firing
    from agent_env_core.sandbox.contract import Sandbox
    from agent_env_core.verifiers.pool import VerifierPool


async def _no_host(sandbox: Sandbox) -> None:
    raise EpisodeError("teardown", f"nobody can end the sandbox {sandbox.id}")


@dataclass
class PlayedAgent:
    """An agent whose turns are played from outside.

    Attributes:
        name: Its name in the task.
        envs: The envs whose tools it has.
        role: Its role; None is the default one.
        system_prompt: The one in force; a prompt step that brings its own replaces it for good.
        sandbox: Where it works, with a ``bash`` in its turns; None where the task needs no such place.
        skills: What it was given to read, in that sandbox.
    """

    name: str
    envs: tuple[Deployment, ...] = ()
    role: str | None = None
    system_prompt: str | None = None
    sandbox: PlacedSandbox | None = None
    skills: tuple[PlacedSkill, ...] = ()


@dataclass(frozen=True)
class ToolUse:
    """A tool call in a turn, and what came of it, for judges to read.

    Attributes:
        tool: The tool.
        arguments: What it was called with.
        result: What it answered, as text; the middle of a long one is left out.
        failure: Why it failed, in a word, or empty.
    """

    tool: str
    arguments: Mapping[str, Any]
    result: str
    failure: str = ""


@dataclass(frozen=True)
class PromptRequest:
    """A prompt on its way to whoever plays the agent.

    Attributes:
        step_id: The step that asks.
        prompt: What it asks.
        system_prompt: The system prompt in force, if any.
        agent: Who is asked.
        conversation: Names the conversation it belongs to; whoever plays keeps its history.
        uses: The tools that were used for it; the turn adds to the list.
    """

    step_id: str
    prompt: str
    system_prompt: str | None
    agent: PlayedAgent
    conversation: str = field(default_factory=lambda: uuid.uuid4().hex)
    uses: list[ToolUse] = field(default_factory=list)


@dataclass(frozen=True)
class Exchange:
    """One message to an agent, and its reply.

    Attributes:
        prompt: What was asked.
        sent_at: When.
        author: Who asked: the name of the user, simulated or not.
        response: The reply; None where there is none.
        replied_at: When it came.
        uses: The tools that were used for it.
        parts: What was asked, in parts, where it was more than a text.
        user_sim: What a simulated user said with it, beside the message.
        clocks: Each env's virtual time when it was asked, and when it was answered; None where no env keeps one.
    """

    prompt: str
    sent_at: datetime
    author: str
    response: str | None = None
    replied_at: datetime | None = None
    uses: tuple[ToolUse, ...] = ()
    parts: tuple[Mapping[str, Any], ...] = ()
    user_sim: Mapping[str, Any] | None = None
    clocks: tuple[Mapping[str, datetime | None] | None, Mapping[str, datetime | None] | None] = (None, None)


@dataclass(frozen=True)
class PromptResponse:
    """A prompt that was answered, or wasn't.

    Attributes:
        prompt_id: The name verifiers know it by.
        step_id: The step that sent it.
        agent_name: Who answered.
        prompt: What was asked.
        sent_at: When.
        response: The last reply; None where there is none.
        replied_at: When it came.
        error: Why there is no reply, or empty.
        exchanges: The whole conversation: one exchange, or more where a user is simulated.
        structured_output: The last reply as JSON, where the step asked for that and the reply fits.
    """

    prompt_id: str
    step_id: str
    agent_name: str
    prompt: str
    sent_at: datetime
    response: str | None = None
    replied_at: datetime | None = None
    error: str = ""
    exchanges: tuple[Exchange, ...] = ()
    structured_output: Any = None


@dataclass(frozen=True)
class Verification:
    """What a scoring step found: its rows as they came, their score, and what else it has to tell."""

    score: float
    results: list[dict[str, Any]]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class RunContext:
    """One run of one task: what was deployed, said and scored so far, and the means to do more.

    Attributes:
        episode_id: The run.
        bundle: Where the task's entities are.
        deploy: Deploys an env: ``await deploy(env, step_id, options)``.
        play: Has a prompt answered from outside: ``await play(request)`` is the reply.
        verifiers: Runs verifiers.
        max_ttl: The longest a sandbox may live here, in seconds; None is without limit.
        envs: What is deployed, by env id.
        agents: What plays, by agent name.
        responses: The prompts so far, in the order of their replies.
        verifications: By ``verifier_id``.
        metadata: Notes of steps, for the record: each key holds a list.
        firings: What triggers did, in the order in which they were done.
        snapshots: What ``snapshot_env`` steps exported, by the artifact id that later steps know it by.
        destroy: Ends a sandbox of this run before the run ends.
        at_end: Called, last one first, when the run is over and its sandboxes still stand.
        models: The models that judge and stand in for users.
        places: The sandboxes that steps act in, beside those of envs, and the means to make more.
        collected: Files that were taken out of sandboxes, by the step that did.
        script_results: What ``run_code`` steps returned, by ``result_id``.
        before: How what a step changed was before it did, by the step's id, for steps that take it back.
    """

    episode_id: str
    bundle: Bundle
    deploy: Callable[[Env, str, DeployOptions], Awaitable[Deployment]]
    play: Callable[[PromptRequest], Awaitable[str]]
    verifiers: VerifierPool
    max_ttl: float | None = None
    envs: dict[str, Deployment] = field(default_factory=dict)
    agents: dict[str, PlayedAgent] = field(default_factory=dict)
    responses: list[PromptResponse] = field(default_factory=list)
    verifications: dict[str, Verification] = field(default_factory=dict)
    metadata: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    firings: list[Firing] = field(default_factory=list)
    snapshots: dict[str, Seeds] = field(default_factory=dict)
    destroy: Callable[[Sandbox], Awaitable[None]] = field(default=_no_host)
    at_end: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    models: ModelSettings = field(default_factory=ModelSettings.from_env)
    places: Places = field(default_factory=Places)
    collected: dict[str, tuple[File, ...]] = field(default_factory=dict)
    script_results: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)

    @property
    def sandboxes(self) -> dict[str, PlacedSandbox]:
        """The sandboxes that stand, by name: ``vm``, ``vm/container``, or an agent's name."""
        return self.places.standing

    def env(self, env_id: str) -> Deployment:
        """The deployment of an env.

        Raises:
            EpisodeError: It isn't deployed.
        """
        if env_id not in self.envs:
            names = ", ".join(sorted(env.env.name for env in self.envs.values())) or "none"
            reason = f"the env {env_id.rpartition('/')[2]!r} isn't deployed (deployed: {names})"
            raise EpisodeError("setup", f"{reason}: a deploy_env step for it must come before this one")
        return self.envs[env_id]

    def env_of(self, env_id: str, env_step_id: str | None) -> Deployment:
        """The deployment of an env that a certain step made; None as the step takes any.

        Raises:
            EpisodeError: It isn't deployed, or another step deployed it.
        """
        found = self.env(env_id)
        if env_step_id not in (None, found.step_id):
            reason = f"env_step_id={env_step_id!r}: the env {found.env.name!r} was deployed by {found.step_id!r}"
            raise EpisodeError("setup", reason)
        return found

    def agent(self, name: str) -> PlayedAgent:
        """The agent of that name.

        Raises:
            EpisodeError: It isn't deployed.
        """
        if name not in self.agents:
            names = ", ".join(sorted(self.agents)) or "none"
            raise EpisodeError("setup", f"the agent {name!r} isn't deployed (deployed: {names})")
        return self.agents[name]

    def response(self, prompt_id: str) -> PromptResponse:
        """What came of the prompt of that id; of several, the first.

        Raises:
            EpisodeError: No such prompt was sent.
        """
        for response in self.responses:
            if response.prompt_id == prompt_id:
                return response
        sent = ", ".join(repr(response.prompt_id) for response in self.responses) or "none"
        raise EpisodeError("verify", f"prompt_id={prompt_id!r}: no prompt of that id was sent (sent: {sent})")

    def answered(self, prompt_id: str) -> PromptResponse:
        """The same, of a prompt that must have a reply: what was never answered is no reply that scores low.

        Raises:
            EpisodeError: It has none.
        """
        response = self.response(prompt_id)
        if response.response is None:
            raise EpisodeError("verify", f"prompt_id={prompt_id!r}: there is no reply to score: {response.error}")
        return response

    def note(self, key: str, entry: dict[str, Any]) -> None:
        """Adds to a list of :attr:`metadata`."""
        self.metadata.setdefault(key, []).append(entry)

    def forget(self, key: str, step_id: str) -> None:
        """Takes back what a step noted in a list of :attr:`metadata`."""
        if key in self.metadata:
            self.metadata[key] = [entry for entry in self.metadata[key] if entry.get("step_id") != step_id]

    def agent_sandbox(self, name: str) -> PlacedSandbox:
        """Where an agent works.

        Raises:
            EpisodeError: It isn't deployed, or works in no sandbox.
        """
        placed = self.agent(name).sandbox
        if placed is None:
            raise EpisodeError("setup", f"the agent {name!r} works in no sandbox, so nothing can be done there")
        return placed

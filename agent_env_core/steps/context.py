"""What the steps of one run share."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import EpisodeError
from agent_env_core.models import ModelSettings

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
    """

    name: str
    envs: tuple[Deployment, ...] = ()
    role: str | None = None
    system_prompt: str | None = None


@dataclass(frozen=True)
class PromptRequest:
    """A prompt on its way to whoever plays the agent.

    Attributes:
        step_id: The step that asks.
        prompt: What it asks.
        system_prompt: The system prompt in force, if any.
        agent: Who is asked.
        conversation: Names the conversation it belongs to; whoever plays keeps its history.
    """

    step_id: str
    prompt: str
    system_prompt: str | None
    agent: PlayedAgent
    conversation: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class PromptResponse:
    """A prompt that was answered, or wasn't.

    Attributes:
        prompt_id: The name verifiers know it by.
        step_id: The step that sent it.
        agent_name: Who answered.
        prompt: What was asked.
        sent_at: When.
        response: The reply; None where there is none.
        replied_at: When it came.
        error: Why there is no reply, or empty.
    """

    prompt_id: str
    step_id: str
    agent_name: str
    prompt: str
    sent_at: datetime
    response: str | None = None
    replied_at: datetime | None = None
    error: str = ""


@dataclass(frozen=True)
class Verification:
    """What a scoring step found: its rows as they came, and their score."""

    score: float
    results: list[dict[str, Any]]


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

    def note(self, key: str, entry: dict[str, Any]) -> None:
        """Adds to a list of :attr:`metadata`."""
        self.metadata.setdefault(key, []).append(entry)

"""What there is to play in a task, read and checked without deploying anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from agent_env_core.errors import EpisodeRefused, PluginError, Problem, Unsupported, describe
from agent_env_core.play.refusals import (
    Refusal,
    between_steps,
    choose_agents,
    idle_agents,
    prompted_agents,
    simulated_users,
)
from agent_env_core.play.scheduler import dependencies
from agent_env_core.play.seeds import seeded
from agent_env_core.plugins import plugins
from agent_env_core.steps.deploy_agent import DeployAgent
from agent_env_core.steps.deploy_env import DeployEnv
from agent_env_core.steps.placed import Plan, works_in_sandbox
from agent_env_core.steps.prompt_agent import PromptAgent

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle, Task
    from agent_env_core.play.episode import Episode
    from agent_env_core.play.runner import Runner
    from agent_env_core.steps.base import TaskStep
    from agent_env_core.steps.placed import SandboxOrder


class Prompt(NamedTuple):
    """A prompt that is played from outside, as the model will see it.

    Attributes:
        agent: Who is asked.
        step_id: The step that asks.
        prompt: What it asks.
        system_prompt: The system prompt in force then, if any.
    """

    agent: str
    step_id: str
    prompt: str
    system_prompt: str | None


@dataclass(frozen=True)
class EpisodeSpec:
    """A task that can be played. Made by :meth:`from_task`; any number of episodes start from one.

    Attributes:
        task: The task.
        trainer_agents: The agents that are played from outside.
        steps: Its steps, with seeds filled in.
        prompts: The prompts that are played, in step order.
        score_ids: The steps that record a score, in step order.
        workers: The agents that work in a sandbox, those that are never asked for anything included.
        turn_timeout: Seconds a played turn may take; None sets no bound.
        evaluation: Whether it is played by an evaluation, which goes back to earlier steps where the task says so, and
            keeps the deadlines that its prompts set.
    """

    task: Task
    trainer_agents: tuple[str, ...]
    steps: tuple[TaskStep, ...]
    prompts: tuple[Prompt, ...]
    score_ids: tuple[str, ...]
    workers: frozenset[str]
    turn_timeout: float | None = None
    evaluation: bool = False

    @classmethod
    def from_task(
        cls,
        task: Task,
        *,
        trainer_agents: Sequence[str] | None = None,
        seed: Mapping[str, str] | None = None,
        turn_timeout: float | None = None,
        evaluation: bool = False,
    ) -> EpisodeSpec:
        """Reads a task.

        Args:
            task: The task.
            trainer_agents: The agents to play from outside; by default the only one that the task prompts.
            seed: ``<key>`` in any text of any step becomes the key's value.
            turn_timeout: Seconds a played turn may take, the player's thinking included. By default nothing bounds it.
            evaluation: Whether an evaluation plays it. Then it plays every agent that is prompted, be it none or
                several, steps may be tried again, and a prompt's own ``timeout_seconds`` bounds its turn.

        Raises:
            EpisodeRefused: It can't be played; holds every reason.
        """
        raw, unnamed = seeded(task, seed or {})
        if evaluation and trainer_agents is None:
            played, refusals = prompted_agents(raw), list[Refusal]()
        else:
            played, refusals = choose_agents(raw, trainer_agents)
        refusals += [*unnamed, *between_steps(raw, played)]
        nameless = {step_id for step_id, *_ in unnamed}
        cast = (*played, *simulated_users(raw), *idle_agents(raw))
        steps: list[TaskStep] = []
        for step in (step for step in raw if step.get("id") not in nameless):
            made = _make(step)
            if isinstance(made, list):
                refusals += made
            else:
                steps.append(made)
                refusals += _refused(made, cast, task.bundle)
                if made.retry_config is not None and not evaluation:
                    refusals.append((made.id, "retry_config: a step can't be run again in an episode", ""))
                if isinstance(made, PromptAgent) and made.output_format is not None and not evaluation:
                    refusals.append((made.id, "output_format: a trainer's model can't be held to a form", ""))
        try:
            dependencies(steps if not refusals else ())
        except ValueError as exc:
            refusals.append(("", str(exc), ""))
        if refusals:
            raise EpisodeRefused(f"task {task.name!r}", [_problem(task, refusal) for refusal in refusals])
        scoring = tuple(step.id for step in steps if getattr(step, "verifier_id", None) is not None)
        workers = frozenset(agent for agent in (*played, *idle_agents(raw)) if works_in_sandbox(raw, agent))
        return cls(task, played, tuple(steps), _prompts(steps, played), scoring, workers, turn_timeout, evaluation)

    @property
    def deploys(self) -> tuple[DeployEnv, ...]:
        """The steps that deploy envs."""
        return tuple(step for step in self.steps if isinstance(step, DeployEnv))

    @property
    def most_turns(self) -> int:
        """How many turns there are to play at most: a user may end a conversation earlier."""
        return sum(
            step.max_conversation_turns
            for step in self.steps
            if isinstance(step, PromptAgent) and step.agent_name in self.trainer_agents
        )

    def orders(self, max_ttl: float | None) -> tuple[SandboxOrder, ...]:
        """The sandboxes that its steps make beside those of envs, where one may live ``max_ttl`` seconds at most.

        Raises:
            Unsupported: A step asks for what no sandbox can have; the message names the step.
        """
        plan = Plan(self.task.bundle, self.steps, self.workers, max_ttl)
        found: list[SandboxOrder] = []
        for step in self.steps:
            try:
                found += step.orders(plan)
            except Unsupported as exc:
                raise Unsupported(f"step {step.id!r}: {exc}") from exc
        return tuple(found)

    async def start(self, runner: Runner) -> Episode:
        """Starts a new episode; returns before anything is deployed."""
        from agent_env_core.play.episode import Episode

        episode = Episode(self, runner)
        episode.start()
        return episode


def _make(step: Mapping[str, Any]) -> TaskStep | list[Refusal]:
    """A step of its class, or why there is none."""
    step_id = str(step.get("id", ""))
    try:
        kind = plugins().step_type(str(step.get("type")))
    except PluginError as exc:
        return [(step_id, str(exc), "")]
    try:
        return kind.model_validate(step)
    except ValidationError as exc:
        return [(step_id, line, "") for line in kind.faults(step)] or [(step_id, describe(exc), "")]
    except Exception as exc:  # a plugin's code
        return [(step_id, f"the step type {step.get('type')!r} can't read it: {describe(exc)}", "")]


def _refused(step: TaskStep, played: Sequence[str], bundle: Bundle) -> list[Refusal]:
    try:
        return [(step.id, line, "") for line in (*step.refusals(played), *step.misfits(bundle))]
    except Exception as exc:  # a plugin's code
        return [(step.id, f"the step type {step.type!r} can't say whether it can be played: {describe(exc)}", "")]


def _problem(task: Task, refusal: Refusal) -> Problem:
    step_id, message, fix = refusal
    place = f"tasks/{task.path.name}"
    return Problem(f"{place}:{step_id}" if step_id else place, message, fix)


def _prompts(steps: Sequence[TaskStep], played: Sequence[str]) -> tuple[Prompt, ...]:
    in_force: dict[str, str | None] = {}
    prompts = []
    for step in steps:
        if isinstance(step, DeployAgent):
            in_force[step.agent_name] = step.system_prompt
        elif isinstance(step, PromptAgent) and step.agent_name in played:
            if step.system_prompt is not None:
                in_force[step.agent_name] = step.system_prompt
            system_prompt = in_force.get(step.agent_name)
            prompts.append(Prompt(step.agent_name, step.id, step.text, system_prompt))
    return tuple(prompts)

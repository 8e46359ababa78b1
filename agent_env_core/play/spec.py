"""What there is to play in a task, read without deploying anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from agent_env_core.bundle import Task
    from agent_env_core.play.episode import Episode
    from agent_env_core.play.runner import Runner


class Prompt(NamedTuple):
    agent: str
    step_id: str
    prompt: str
    system_prompt: str | None


class EpisodeSpec:
    task: Task
    trainer_agents: tuple[str, ...]
    prompts: tuple[Prompt, ...]  # played prompts in step order
    score_ids: tuple[str, ...]  # ids of the scoring steps, in order

    @classmethod
    def from_task(
        cls,
        task: Task,
        *,
        trainer_agents: Sequence[str] | None = None,
        seed: Mapping[str, str] | None = None,
        turn_timeout: float | None = None,
    ) -> EpisodeSpec: ...  # raises EpisodeRefused with every reason

    async def start(self, runner: Runner) -> Episode: ...

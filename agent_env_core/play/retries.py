"""Going back to an earlier step when a step fails, as its ``retry_config`` asks. Evaluations do; episodes don't."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env_core.play.scheduler import dependencies

if TYPE_CHECKING:
    from agent_env_core.steps.base import TaskStep

RESUME_FIELDS = ("retry_from_step_id", "go_to_step_id")
"""The names that the step to go back to may have in ``retry_config``."""
DEFAULT_RETRIES = 1


class Retries:
    """What one run may try again.

    A failure goes back to one step and runs again all that depends on it, directly or through others: what those steps
    did rests on what is done anew.

    Args:
        steps: The task's steps. Each resume point is the step itself or one that it depends on; the bundle reader has
            checked that.
    """

    def __init__(self, steps: Sequence[TaskStep]) -> None:
        self._needs = dependencies(steps)
        self._configs: dict[str, Mapping[str, Any]] = {
            step.id: step.retry_config for step in steps if step.retry_config is not None
        }
        self._used: Counter[str] = Counter()

    def left(self, step_id: str) -> int:
        """How often the step may fail and be tried again."""
        config = self._configs.get(step_id)
        return 0 if config is None else int(config.get("max_retries", DEFAULT_RETRIES)) - self._used[step_id]

    def after(self, step_id: str) -> frozenset[str]:
        """The steps to run again now that this one has failed; none when it has used up its tries."""
        if self.left(step_id) <= 0:
            return frozenset()
        self._used[step_id] += 1
        config = self._configs[step_id]
        start = next((str(config[field]) for field in RESUME_FIELDS if config.get(field) is not None), step_id)
        again = {start}
        for name, needs in self._needs.items():  # in the task's order, where dependencies come first
            if needs & again:
                again.add(name)
        return frozenset(again)

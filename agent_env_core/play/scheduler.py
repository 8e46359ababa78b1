"""Runs steps as their dependencies allow, many at once. Knows nothing of what a step does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from agent_env_core.errors import describe


class Schedulable(Protocol):
    """What the scheduler reads of a step."""

    @property
    def id(self) -> str:
        """Unique among the steps of a run."""

    @property
    def depends_on(self) -> Sequence[str] | None:
        """Ids of earlier steps; None is all of them."""

    @property
    def fail_task_on_error(self) -> bool:
        """Whether a failure of the step ends the run."""


S = TypeVar("S", bound=Schedulable)


@dataclass(frozen=True)
class FailedStep:
    """A step that failed.

    Attributes:
        step_id: The step.
        error: What it raised.
        started_at: When it began.
        seconds: How long it ran.
        fatal: Whether it ended the run.
    """

    step_id: str
    error: Exception
    started_at: datetime
    seconds: float
    fatal: bool

    def __str__(self) -> str:
        return f"{self.step_id}: {describe(self.error)}"


def dependencies(steps: Sequence[Schedulable]) -> Mapping[str, frozenset[str]]:
    """The ids each step waits for.

    Raises:
        ValueError: An id is used twice, or a dependency is no earlier step.
    """
    found: dict[str, frozenset[str]] = {}
    for step in steps:
        needs = found.keys() if step.depends_on is None else step.depends_on
        strangers = [name for name in needs if name not in found]
        if strangers:
            raise ValueError(f"step {step.id!r} depends on {strangers[0]!r}, which is no earlier step")
        if step.id in found:
            raise ValueError(f"the step id {step.id!r} is used twice")
        found[step.id] = frozenset(needs)
    return found


async def run_steps(
    steps: Sequence[S],
    execute: Callable[[S], Awaitable[None]],
    *,
    on_failure: Callable[[FailedStep], None] = lambda failed: None,
) -> None:
    """Runs every step once all it depends on have ended.

    A failure of a tolerant step releases those that wait for it as if it had ended well. At the first other failure no
    step is started any more, the ones under way are awaited, and the failure is raised. Cancelling this cancels the
    steps under way and waits for them.

    Args:
        steps: In the task's order; those that are ready at once start in it.
        execute: Runs one step.
        on_failure: Told of each failure as it happens.

    Raises:
        Exception: What the first fatal step raised, itself.
    """
    needs = dependencies(steps)
    waiting = {step.id: step for step in steps}
    ended: set[str] = set()
    fatal: list[Exception] = []

    async def attempt(step: S) -> None:
        started_at, began = datetime.now(UTC), time.monotonic()
        try:
            await execute(step)
        except Exception as exc:
            on_failure(FailedStep(step.id, exc, started_at, time.monotonic() - began, step.fail_task_on_error))
            if step.fail_task_on_error:
                fatal.append(exc)
        ended.add(step.id)

    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            if not fatal:
                for step_id in [step_id for step_id in waiting if needs[step_id] <= ended]:
                    running.add(asyncio.create_task(attempt(waiting.pop(step_id)), name=step_id))
            if not running:
                break
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # attempt raises only what must not be kept: KeyboardInterrupt and the like
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if fatal:
        raise fatal[0]

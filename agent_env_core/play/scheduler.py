"""Runs steps as their dependencies allow, many at once. Knows nothing of what a step does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
        retried: Whether it is tried again.
    """

    step_id: str
    error: Exception
    started_at: datetime
    seconds: float
    fatal: bool
    retried: bool = False

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
    again: Callable[[str], Collection[str]] = lambda step_id: (),
    undo: Callable[[Sequence[S]], Awaitable[None]] | None = None,
) -> None:
    """Runs every step once all it depends on have ended.

    A failure of a tolerant step releases those that wait for it as if it had ended well. At the first other failure no
    step is started any more, the ones under way are awaited, and the failure is raised. Cancelling this cancels the
    steps under way and waits for them.

    A step that fails may have steps run ``again``, itself among them. They start once none of them is under way any
    more, after ``undo`` has taken back what they did, and what depends on them waits until then.

    Args:
        steps: In the task's order; those that are ready at once start in it.
        execute: Runs one step.
        on_failure: Told of each failure as it happens.
        again: Asked at each failure, with the step's id: the ids of the steps to run again, or none.
        undo: Takes back what steps did; they come in the reverse of the task's order.

    Raises:
        Exception: What the first fatal step raised, itself.
    """
    needs = dependencies(steps)
    waiting = {step.id: step for step in steps}
    ended: set[str] = set()
    fatal: list[Exception] = []
    repeated: set[str] = set()

    async def attempt(step: S) -> None:
        started_at, began = datetime.now(UTC), time.monotonic()
        try:
            await execute(step)
        except Exception as exc:
            repeated.update(more := again(step.id))
            ends = step.fail_task_on_error and not more
            on_failure(FailedStep(step.id, exc, started_at, time.monotonic() - began, ends, retried=bool(more)))
            if ends:
                fatal.append(exc)
        ended.add(step.id)

    async def start_over() -> None:
        chosen = [step for step in steps if step.id in repeated]
        repeated.clear()
        try:
            if undo is not None:
                await undo([step for step in reversed(chosen) if step.id in ended])
        except Exception as exc:
            fatal.append(exc)
        ended.difference_update(step.id for step in chosen)
        waiting.update((step.id, step) for step in chosen)

    running: set[asyncio.Task[None]] = set()
    try:
        while True:
            if repeated and not fatal and not any(task.get_name() in repeated for task in running):
                await start_over()
            if not fatal:
                ready = [s.id for s in steps if s.id in waiting.keys() - repeated and needs[s.id] <= ended]
                for step_id in ready:
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

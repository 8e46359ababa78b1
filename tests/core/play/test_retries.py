"""Going back to an earlier step: which steps run again, in which order, and what is taken back before."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from agent_env_core.play.retries import Retries
from agent_env_core.play.scheduler import FailedStep, run_steps


def step(name: str, needs: list[str] | None = None, *, tolerant: bool = False, **retry: Any) -> Any:
    return SimpleNamespace(id=name, depends_on=needs, fail_task_on_error=not tolerant, retry_config=retry or None)


class Run:
    """Runs steps of which some fail a number of times; keeps what happened."""

    def __init__(self, steps: list[Any], **failures: int) -> None:
        self.steps = steps
        self.failures = Counter(failures)
        self.seen: list[str] = []
        self.failed: list[FailedStep] = []

    async def execute(self, step: Any) -> None:
        self.seen.append(step.id)
        await asyncio.sleep(0)
        if self.failures[step.id] > 0:
            self.failures[step.id] -= 1
            raise RuntimeError(step.id)

    async def undo(self, steps: Any) -> None:
        self.seen.append("undo " + " ".join(step.id for step in steps))

    async def go(self) -> str:
        retries = Retries(self.steps)
        await run_steps(self.steps, self.execute, on_failure=self.failed.append, again=retries.after, undo=self.undo)
        return ", ".join(self.seen)


async def test_a_step_goes_back_to_an_ancestor_and_all_between_runs_again():
    run = Run([step("a"), step("b"), step("c"), step("d", retry_from_step_id="b", max_retries=3)], d=2)
    undone = "undo d c b, b, c, d"
    assert await run.go() == f"a, b, c, d, {undone}, {undone}"
    assert [(failed.fatal, failed.retried) for failed in run.failed] == [(False, True)] * 2


async def test_a_step_goes_back_to_itself():
    assert await Run([step("a"), step("b", go_to_step_id="b"), step("c")], b=1).go() == "a, b, undo b, b, c"


async def test_siblings_that_rest_on_what_is_done_anew_run_again_and_others_dont():
    steps = [step("a"), step("other", []), step("left", ["a"]), step("right", ["a"], retry_from_step_id="a")]
    run = Run([*steps, step("end")], right=1)
    assert await run.go() == "a, other, left, right, undo right left a, a, left, right, end"


async def test_what_is_under_way_ends_before_anything_runs_again():
    release = asyncio.Event()

    class Slow(Run):
        async def execute(self, step: Any) -> None:
            if step.id == "slow" and "fails" not in self.seen[:-1] and self.seen.count("slow") == 0:
                self.seen.append("slow")
                await release.wait()
                self.seen.append("slow ended")
                return
            if step.id == "fails" and self.failures["fails"]:
                asyncio.get_running_loop().call_soon(release.set)
            await super().execute(step)

    run = Slow([step("a"), step("slow", ["a"]), step("fails", ["a"], retry_from_step_id="a")], fails=1)
    assert await run.go() == "a, slow, fails, slow ended, undo fails slow a, a, slow, fails"


async def test_the_last_failure_ends_the_run():
    run = Run([step("a", go_to_step_id="a", max_retries=2), step("b")], a=9)
    with pytest.raises(RuntimeError, match="a"):
        await run.go()
    assert run.seen.count("a") == 3
    assert [failed.fatal for failed in run.failed] == [False, False, True]


async def test_a_tolerant_step_is_tried_again_first():
    run = Run([step("a", tolerant=True, go_to_step_id="a"), step("b")], a=9)
    assert await run.go() == "a, undo a, a, b"
    assert [failed.retried for failed in run.failed] == [True, False]


async def test_no_retries_is_none():
    run = Run([step("a", go_to_step_id="a", max_retries=0)], a=1)
    with pytest.raises(RuntimeError):
        await run.go()
    assert run.seen == ["a"]


async def test_a_fatal_failure_elsewhere_ends_the_run():
    run = Run([step("a", []), step("b", [], go_to_step_id="b", max_retries=9)], a=1, b=5)
    with pytest.raises(RuntimeError, match="a"):
        await run.go()
    assert run.seen == ["a", "b"]


async def test_an_undo_that_fails_ends_the_run():
    class Broken(Run):
        async def undo(self, steps: Any) -> None:
            raise OSError("can't be undone")

    with pytest.raises(OSError, match="can't be undone"):
        await Broken([step("a", go_to_step_id="a")], a=1).go()


async def test_cancelling_a_run_that_is_tried_again():
    run = Run([step("a", go_to_step_id="a", max_retries=10**9)], a=10**9)
    going = asyncio.create_task(run.go())
    while len(run.seen) < 10:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from agent_env_core.play.scheduler import FailedStep, dependencies, run_steps


@dataclass(frozen=True)
class Step:
    id: str
    depends_on: list[str] | None = None
    fail_task_on_error: bool = True


class Recorder:
    """Runs steps that wait for a signal each, and keeps what happened in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.errors: dict[str, Exception] = {}
        self.failed: list[FailedStep] = []

    def gate(self, *names: str) -> None:
        self.gates.update({name: asyncio.Event() for name in names})

    async def __call__(self, step: Step) -> None:
        self.log.append(f"+{step.id}")
        try:
            if step.id in self.gates:
                await self.gates[step.id].wait()
            if step.id in self.errors:
                raise self.errors[step.id]
        except asyncio.CancelledError:
            self.log.append(f"x{step.id}")
            raise
        self.log.append(f"-{step.id}")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_absent_dependencies_are_all_earlier_steps_and_an_empty_list_is_none():
    steps = [Step("a"), Step("b"), Step("c", []), Step("d", ["a"])]
    assert dependencies(steps) == {"a": set(), "b": {"a"}, "c": set(), "d": {"a"}}


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([Step("a", ["b"]), Step("b")], "step 'a' depends on 'b', which is no earlier step"),
        ([Step("a", ["a"])], "depends on 'a'"),
        ([Step("a"), Step("a", [])], "the step id 'a' is used twice"),
    ],
)
def test_wrong_dependencies_are_named(steps: list[Step], said: str):
    with pytest.raises(ValueError, match=said):
        dependencies(steps)


async def test_steps_run_one_after_another_by_default():
    record = Recorder()
    await run_steps([Step("a"), Step("b"), Step("c")], record)
    assert record.log == ["+a", "-a", "+b", "-b", "+c", "-c"]


async def test_ready_steps_run_side_by_side():
    record = Recorder()
    record.gate("a", "b")
    run = asyncio.create_task(run_steps([Step("a"), Step("b", []), Step("c", ["b"]), Step("d")], record))
    await settle()
    assert record.log == ["+a", "+b"]
    record.gates["b"].set()
    await settle()
    assert record.log == ["+a", "+b", "-b", "+c", "-c"]
    record.gates["a"].set()
    await run
    assert record.log[-2:] == ["+d", "-d"]


async def test_the_first_fatal_failure_is_raised_after_what_runs_has_ended():
    record = Recorder()
    record.gate("slow", "bad")
    first, second = ValueError("first"), ValueError("second")
    record.errors = {"bad": first, "slow": second}
    steps = [Step("slow", []), Step("bad", []), Step("after", ["bad"]), Step("other", ["slow"])]
    run = asyncio.create_task(run_steps(steps, record, on_failure=record.failed.append))
    await settle()
    record.gates["bad"].set()
    await settle()
    assert not run.done()
    record.gates["slow"].set()
    with pytest.raises(ValueError, match="first") as caught:
        await run
    assert caught.value is first
    assert record.log == ["+slow", "+bad"]
    assert [(f.step_id, f.error, f.fatal) for f in record.failed] == [("bad", first, True), ("slow", second, True)]


async def test_a_tolerant_failure_releases_what_waits_for_it():
    record = Recorder()
    record.errors = {"a": ValueError("tolerated")}
    await run_steps([Step("a", fail_task_on_error=False), Step("b")], record, on_failure=record.failed.append)
    assert record.log == ["+a", "+b", "-b"]
    assert [(f.step_id, f.fatal) for f in record.failed] == [("a", False)]
    assert str(record.failed[0]) == "a: ValueError: tolerated"


async def test_cancelling_cancels_what_runs_and_waits_for_it():
    record = Recorder()
    record.gate("a", "b")
    run = asyncio.create_task(run_steps([Step("a"), Step("b", []), Step("c")], record))
    await settle()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(record.log) == ["+a", "+b", "xa", "xb"]

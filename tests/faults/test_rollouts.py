"""Rollouts under faults: a short run of what ``make chaos`` does at length."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_env_core.errors import EpisodeError
from agent_env_core.sandbox.contract import SandboxProvider
from agent_env_core.testing.fake import FakeProvider
from chaos.envs import Counter
from chaos.judge import violations
from chaos.play import Aftermath, Limits, Outcome, run
from chaos.schedule import KINDS, Fault, Plan, Schedule, make

LIMITS = Limits()


async def judged(schedule: Schedule, inner: SandboxProvider, folder: Path, limits: Limits = LIMITS) -> Aftermath:
    """Plays a schedule and asserts that every invariant holds."""
    aftermath = await run(schedule, inner, limits, folder)
    assert violations(schedule, aftermath, limits) == [], f"seed {schedule.seed}"
    return aftermath


@pytest.mark.slow
@pytest.mark.usefixtures("no_processes_left")
async def test_hundreds_of_rollouts(tmp_path: Path) -> None:
    aftermath = await judged(make(20, 250), FakeProvider(app=Counter), tmp_path)
    assert sum(outcome.scores is not None for outcome in aftermath.outcomes) > 150


@pytest.mark.usefixtures("no_processes_left")
async def test_a_host_that_closes_in_the_middle(tmp_path: Path) -> None:
    aftermath = await judged(make(21, 60, closes=0.4), FakeProvider(app=Counter), tmp_path)
    assert any(outcome.error is not None for outcome in aftermath.outcomes)


@pytest.mark.usefixtures("no_processes_left")
async def test_each_fault_by_itself_beside_a_neighbour(tmp_path: Path) -> None:
    faults = [Fault(where, kind, seconds=0.05) for where, kinds in KINDS.items() for kind in kinds]
    plans = [Plan(number, 0, 2, (fault,)) for number, fault in enumerate(faults)]
    neighbours = [Plan(len(plans) + number, 0, 3) for number in range(8)]
    aftermath = await judged(Schedule(0, (*plans, *neighbours)), FakeProvider(app=Counter), tmp_path)
    ends = {str(outcome.plan.faults[0]): outcome.error for outcome in aftermath.outcomes if outcome.plan.faults}
    phases = {name: error.phase if error is not None else "" for name, error in ends.items()}
    harmless = ("create:busy", "create:image", "create:slow", "endpoint:slow", "env:tool-slow")
    assert {name: phases[name] for name in harmless} == dict.fromkeys(harmless, "")
    assert {phases[f"verify:{kind}"] for kind in KINDS["verify"]} == {"verify"}
    assert {phases[f"kill:{kind}"] for kind in KINDS["kill"]} == {""}, "a kill that fails is nothing to the score"
    assert {phases[name] for name in ("create:bug", "create:hang", "endpoint:bug")} == {"deploy"}
    assert {phases[name] for name in ("env:tool-hangs", "env:dies", "env:dies-in-call")} == {"tool"}


@pytest.mark.docker
@pytest.mark.slow
async def test_a_dozen_on_docker(tmp_path: Path) -> None:
    from agent_env_docker.provider import DockerProvider

    limits = Limits(ready=90, tool=30, hang=3, patience=10, starting=4, running=8)
    await judged(make(22, 12, rate=0.6, spread=2), DockerProvider(), tmp_path, limits)


def spoilt(**changes: object) -> Aftermath:
    """What a good run of one rollout leaves, changed."""
    outcome = Outcome(Plan(0, 0, 3), scores={"grade": 1.0}, finished=True)
    outcomes = [replace(outcome, **{k: v for k, v in changes.items() if k in Outcome.__dataclass_fields__})]  # type: ignore[arg-type]
    rest = {name: value for name, value in changes.items() if name in Aftermath.__dataclass_fields__}
    return Aftermath(outcomes, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"left": ["box"]}, "I1"),
        ({"live": 1}, "I1"),
        ({"tasks": ["t"]}, "I1"),
        ({"descriptors": 100}, "I1"),
        ({"scores": {"grade": 0.0}}, "I2"),
        ({"scores": None}, "I2"),
        ({"scores": None, "error": EpisodeError("tool", "lost")}, "I2"),
        ({"plan": Plan(0, 0, 3, (Fault("env", "dies"),))}, "I2"),
        ({"seconds": 1e6}, "I3"),
        ({"most_starting": 99}, "I4"),
        ({"most_running": 999}, "I4"),
        ({"scores": {"grade": float("nan")}}, "I5"),
        ({"finished": False}, "I6"),
    ],
)
def test_the_judge_sees_each_broken_invariant(changes: dict[str, object], broken: str) -> None:
    schedule = Schedule(0, (Plan(0, 0, 3),))
    assert violations(schedule, spoilt(), LIMITS) == []
    assert [line[:2] for line in violations(schedule, spoilt(**changes), LIMITS)] == [broken]

"""Schedules: made from a seed, kept as a file, made smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.schedule import KINDS, Plan, Schedule, make, shrink


def test_a_seed_makes_the_same_schedule_again() -> None:
    assert make(7, 50) == make(7, 50)
    assert make(7, 50) != make(8, 50)


def test_a_schedule_is_kept_as_a_file(tmp_path: Path) -> None:
    schedule = make(7, 50, closes=0.5)
    schedule.save(tmp_path / "kept.json")
    assert Schedule.load(tmp_path / "kept.json") == schedule


def test_every_kind_of_fault_turns_up() -> None:
    seen = {(fault.where, fault.kind) for plan in make(1, 2000).plans for fault in plan.faults}
    assert seen == {(where, kind) for where, kinds in KINDS.items() for kind in kinds}


async def test_what_fails_is_made_smaller() -> None:
    tried = []

    async def fails(schedule: Schedule) -> bool:
        tried.append(len(schedule.plans))
        return {13, 40} <= {plan.number for plan in schedule.plans}

    small = await shrink(Schedule(1, tuple(Plan(number, 0, 1) for number in range(64))), fails)
    assert [plan.number for plan in small.plans] == [13, 40]
    assert len(tried) <= 60


@pytest.mark.parametrize("text", ["{", "[]", '{"seed": 1, "plans": [{}], "closes": null}'])
def test_a_file_that_holds_no_schedule_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json holds no schedule"):
        Schedule.load(tmp_path / "other.json")

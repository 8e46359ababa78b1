"""The battery: the optimum against brute force, the grade's bounds, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CENTS = st.integers(-4_000, 500_000)


@st.composite
def small_batteries(draw: Any) -> dict[str, int]:
    capacity = draw(st.integers(1, 3))
    return {
        "block_mwh": draw(st.integers(1, 60)),
        "max_step": draw(st.integers(1, 2)),
        "capacity": capacity,
        "start": draw(st.integers(0, capacity)),
        "efficiency_percent": draw(st.integers(1, 100)),
    }


def brute_force(battery: Any, made: Any, cents: list[int]) -> int:
    """The most that any of all schedules earns, found by trying them all."""
    moves = range(-made.max_step, made.max_step + 1)
    outcomes = (battery.play(made, cents, actions) for actions in itertools.product(moves, repeat=len(cents)))
    return max(outcome.units for outcome in outcomes if outcome.feasible)


@settings(deadline=None, max_examples=60)
@given(limits=small_batteries(), cents=st.lists(CENTS, min_size=1, max_size=5))
def test_no_schedule_beats_the_optimum(battery: Any, limits: dict[str, int], cents: list[int]) -> None:
    made = battery.Battery(**limits)
    schedule, best = battery.optimum(made, cents)
    assert best == brute_force(battery, made, cents)
    outcome = battery.play(made, cents, schedule)
    assert (outcome.feasible, outcome.units) == (True, best)


@given(cents=st.lists(CENTS, min_size=24, max_size=24), actions=st.lists(st.integers(-1, 1), min_size=24, max_size=24))
def test_the_grade_says_what_a_schedule_is_worth(battery: Any, cents: list[int], actions: list[int]) -> None:
    grade = battery.grade(battery.BATTERY, cents, actions)
    _, best = battery.optimum(battery.BATTERY, cents)
    outcome = battery.play(battery.BATTERY, cents, actions)
    assert 0 <= grade.reward <= 1
    assert (grade.reward == 1) == (outcome.feasible and outcome.units == best)
    assert (grade.reward == 0) == (not outcome.feasible or (outcome.units < 0))
    assert (grade.reward > battery.IDLE_REWARD) == (
        outcome.feasible and (outcome.units > 0 or best == 0 == outcome.units)
    )


@given(cents=st.lists(CENTS, min_size=24, max_size=24), units=st.lists(st.integers(-(10**9), 10**9), min_size=2))
def test_more_profit_is_never_worth_less(battery: Any, cents: list[int], units: list[int]) -> None:
    _, best = battery.optimum(battery.BATTERY, cents)
    possible = sorted(min(earned, best) for earned in units)
    rewards = [battery.reward_of(earned, best) for earned in possible]
    assert rewards == sorted(rewards)


@given(cents=st.lists(CENTS, min_size=24, max_size=24))
def test_the_greedy_rule_keeps_the_limits(battery: Any, cents: list[int]) -> None:
    assert battery.play(battery.BATTERY, cents, battery.greedy(battery.BATTERY, cents)).feasible


def test_landmarks_of_the_reward(battery: Any) -> None:
    cents = battery.to_cents([20.0] * 12 + [60.0] * 12)
    idle, nothing = [0] * 24, None
    loss = [0] * 12 + [1, -1] + [0] * 10  # buys dear, loses a part, sells at the same price
    infeasible = [-1] + [0] * 23
    graded = [battery.grade(battery.BATTERY, cents, actions).reward for actions in (nothing, infeasible, loss, idle)]
    assert graded == [0.0, 0.0, 0.0, 0.2]
    best, _ = battery.optimum(battery.BATTERY, cents)
    assert battery.grade(battery.BATTERY, cents, best).reward == 1.0


def test_on_a_day_without_a_gain_idling_is_the_optimum(battery: Any) -> None:
    grade = battery.grade(battery.BATTERY, battery.to_cents([30.0] * 24), [0] * 24)
    assert (grade.reward, grade.optimum_usd, grade.optimal) == (1.0, 0.0, True)


def test_the_money_of_a_day(battery: Any) -> None:
    cents = battery.to_cents([10.0, 50.0] + [30.0] * 22)
    report = battery.report(battery.BATTERY, cents, [1, -1] + [0] * 22)
    assert report == {
        "submitted": True, "feasible": True, "truncated_at": None, "violation": None,
        "soc_path": [1] + [0] * 23, "profit_usd": 50 * 50.0 * 0.85 - 50 * 10.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("actions", "hour", "words", "path"),
    [
        ([0, 0, -1], 2, "from 0 below empty (0)", [0, 0, 0]),
        ([1, 1, 1, -1], 2, "from 2 above full (2)", [1, 2, 2, 2]),
    ],
)
def test_a_schedule_is_cut_where_it_breaks_a_limit(
    battery: Any, actions: list[int], hour: int, words: str, path: list[int]
) -> None:
    report = battery.report(battery.BATTERY, [0] * len(actions), actions)
    assert (report["submitted"], report["feasible"], report["truncated_at"]) == (True, False, hour)
    assert words in report["violation"]
    assert report["violation"].startswith(f"hour {hour}:")
    assert report["soc_path"] == path


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0] * 23, "expected exactly 24 integers, got 23"),
        ([], "expected exactly 24 integers, got 0"),
        ([0] * 25, "expected exactly 24 integers, got 25"),
        ("0" * 24, "expected a list of exactly 24 integers, got str"),
        (None, "expected a list of exactly 24 integers, got NoneType"),
        ([0.0] * 24, "expected exactly 24 integers, got 0.0 for hour 0"),
        ([0, True] + [0] * 22, "expected exactly 24 integers, got True for hour 1"),
        (["1"] * 24, "expected exactly 24 integers, got '1' for hour 0"),
        ([None] * 24, "expected exactly 24 integers, got None for hour 0"),
        (
            [0, 0, -2] + [0] * 21,
            "hour 2: -2 is out of range, each action is an integer from -1 (sell) to 1 (charge)",
        ),
    ],
)
def test_what_is_no_schedule_is_refused(battery: Any, actions: Any, message: str) -> None:
    with pytest.raises(battery.ScheduleError) as refused:
        battery.read_schedule(battery.BATTERY, actions)
    assert str(refused.value) == message


def test_a_refusal_stays_short(battery: Any) -> None:
    with pytest.raises(battery.ScheduleError) as refused:
        battery.read_schedule(battery.BATTERY, ["x" * 100_000] * 24)
    assert len(str(refused.value)) < 120


@pytest.mark.parametrize(
    "limits",
    [{"capacity": 0}, {"max_step": 0}, {"block_mwh": 0}, {"start": 3}, {"efficiency_percent": 0}],
)
def test_a_battery_that_makes_no_sense_is_refused(battery: Any, limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        battery.Battery(**limits)

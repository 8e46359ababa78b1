"""A grid battery for one day of hourly prices: its limits, what a schedule earns, the best one, and the grade.

A schedule is one integer per hour: how many *blocks* of energy the battery takes from the grid (positive) or sells to
it (negative); 0 idles. A block is a fixed amount of energy, so the state of charge is an integer and the best schedule
is found exactly by dynamic programming.

Money is counted in whole numbers (units of ``UNIT_USD``), so no rounding decides whether a schedule is the best one.
The module needs the standard library only: the env, the generator, the baselines and the tests import this one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

HOURS = 24
IDLE_REWARD = 0.2
"""What a day without a loss and without a gain is worth."""
UNIT_USD = 1e-4
"""Dollars of one unit of profit: a hundredth of a cent, so that an efficiency in whole percent leaves no fraction."""


@dataclass(frozen=True)
class Battery:
    """What the battery can do. Energy is counted in blocks of ``block_mwh``.

    All losses fall on the sale: a block charged costs ``price * block_mwh``, a block sold brings
    ``price * block_mwh * efficiency_percent / 100``. What is left in the battery after the last hour is worth nothing.

    Attributes:
        block_mwh: Energy of one block in MWh.
        max_step: Most blocks moved in one hour, either way.
        capacity: Most blocks the battery holds.
        start: Blocks it holds before the first hour.
        efficiency_percent: Share of a stored block that reaches the grid when it is sold.
    """

    block_mwh: int = 50
    max_step: int = 1
    capacity: int = 2
    start: int = 0
    efficiency_percent: int = 85

    def __post_init__(self) -> None:
        if self.block_mwh < 1 or self.max_step < 1 or self.capacity < 1:
            raise ValueError(f"block_mwh, max_step and capacity must be at least 1: {self}")
        if not 0 <= self.start <= self.capacity:
            raise ValueError(f"start must lie between 0 and capacity: {self}")
        if not 1 <= self.efficiency_percent <= 100:
            raise ValueError(f"efficiency_percent must lie between 1 and 100: {self}")

    def limits(self) -> dict[str, Any]:
        """The limits as a prompt states them."""
        return {
            "power_mw": self.block_mwh * self.max_step,
            "energy_mwh": self.block_mwh * self.capacity,
            "block_mwh": self.block_mwh,
            "max_blocks_per_hour": self.max_step,
            "max_soc_blocks": self.capacity,
            "start_soc_blocks": self.start,
            "round_trip_efficiency": self.efficiency_percent / 100,
        }

    def gain(self, action: int, cents: int) -> int:
        """Units gained by ``action`` in an hour with a price of ``cents`` per MWh (negative where it costs)."""
        share = 100 if action > 0 else self.efficiency_percent
        return -action * cents * self.block_mwh * share


BATTERY = Battery()
"""The battery of this bundle: 50 MW for two hours."""


@dataclass(frozen=True)
class Outcome:
    """What became of a schedule.

    Attributes:
        soc_path: Blocks held after each hour; a truncated schedule idles from the hour it broke a limit.
        units: Profit in units of ``UNIT_USD``, up to the truncation.
        truncated_at: The first hour (0 to 23) whose action can't be done, or None.
        violation: Why it can't, or None.
    """

    soc_path: tuple[int, ...]
    units: int
    truncated_at: int | None = None
    violation: str | None = None

    @property
    def feasible(self) -> bool:
        """Whether every action could be done."""
        return self.truncated_at is None


class ScheduleError(ValueError):
    """A schedule that can't be read as one integer an hour; the message says what to mend."""


def to_cents(prices: Iterable[float]) -> tuple[int, ...]:
    """Prices in USD/MWh as whole cents."""
    return tuple(round(price * 100) for price in prices)


def read_schedule(battery: Battery, actions: Any, hours: int = HOURS) -> tuple[int, ...]:
    """Checks the form of a schedule: ``hours`` integers, each within ``max_step``.

    Raises:
        ScheduleError: It has another length, holds something else than integers, or asks for too much in an hour.
    """
    if not isinstance(actions, list | tuple):
        raise ScheduleError(f"expected a list of exactly {hours} integers, got {type(actions).__name__}")
    if len(actions) != hours:
        raise ScheduleError(f"expected exactly {hours} integers, got {len(actions)}")
    for hour, action in enumerate(actions):
        if isinstance(action, bool) or not isinstance(action, int):
            raise ScheduleError(f"expected exactly {hours} integers, got {_shown(action)} for hour {hour}")
        if abs(action) > battery.max_step:
            raise ScheduleError(
                f"hour {hour}: {action} is out of range, each action is an integer from "
                f"-{battery.max_step} (sell) to {battery.max_step} (charge)"
            )
    return tuple(actions)


def _shown(value: Any, limit: int = 40) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def play(battery: Battery, cents: Sequence[int], actions: Sequence[int]) -> Outcome:
    """Runs ``actions`` against the day; stops at the first one that the state of charge doesn't allow."""
    soc, units = battery.start, 0
    path: list[int] = []
    for hour, (price, action) in enumerate(zip(cents, actions, strict=True)):
        after = soc + action
        if not 0 <= after <= battery.capacity:
            limit = "below empty (0)" if after < 0 else f"above full ({battery.capacity})"
            path += [soc] * (len(cents) - hour)
            return Outcome(tuple(path), units, hour, f"hour {hour}: {action} would take the battery from {soc} {limit}")
        soc, units = after, units + battery.gain(action, price)
        path.append(soc)
    return Outcome(tuple(path), units)


def optimum(battery: Battery, cents: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """A schedule that no other beats, and its profit in units; exact, by dynamic programming over the blocks held.

    Of several best schedules the result is the one that, hour by hour, does least and then charges least.
    """
    moves = sorted(range(-battery.max_step, battery.max_step + 1), key=lambda move: (abs(move), move))
    levels = range(battery.capacity + 1)
    worth = [0] * len(levels)
    plan: list[list[int]] = []
    for price in reversed(cents):
        gains = [(move, battery.gain(move, price)) for move in moves]
        options = [
            [(gain + worth[held + move], move) for move, gain in gains if 0 <= held + move <= battery.capacity]
            for held in levels
        ]
        best = [max(option, key=lambda pair: pair[0]) for option in options]
        worth = [value for value, _ in best]
        plan.append([move for _, move in best])
    held, schedule = battery.start, []
    for step in reversed(plan):
        schedule.append(step[held])
        held += step[held]
    return tuple(schedule), worth[battery.start]


def report(battery: Battery, cents: Sequence[int], actions: Sequence[int]) -> dict[str, Any]:
    """What ``submit_schedule`` answers to a schedule of the right form, ready for JSON."""
    outcome = play(battery, cents, actions)
    return {
        "submitted": True,
        "feasible": outcome.feasible,
        "truncated_at": outcome.truncated_at,
        "violation": outcome.violation,
        "soc_path": list(outcome.soc_path),
        "profit_usd": to_usd(outcome.units),
    }


def to_usd(units: int) -> float:
    """Units of profit in dollars, to the cent."""
    return round(units * UNIT_USD, 2)


@dataclass(frozen=True)
class Grade:
    """How good a schedule is for a day.

    Attributes:
        reward: 0 for nothing useful (no schedule, an infeasible one, a loss), 0.2 for a day without gain, 1 for the
            best possible profit; in between it grows linearly with the profit.
        profit_usd: What the schedule earns (0 without one).
        optimum_usd: What the best schedule earns.
        feasible: Whether the schedule keeps the limits; False without one.
        optimal: Whether no schedule earns more.
    """

    reward: float
    profit_usd: float
    optimum_usd: float
    feasible: bool
    optimal: bool


def grade(battery: Battery, cents: Sequence[int], actions: Sequence[int] | None) -> Grade:
    """Grades a schedule (None where none was submitted) against the day's exact optimum.

    On a day on which nothing can be earned, idling is the optimum and earns 1.
    """
    _, best = optimum(battery, cents)
    if actions is None:
        return Grade(0.0, 0.0, to_usd(best), feasible=False, optimal=False)
    outcome = play(battery, cents, actions)
    reward = reward_of(outcome.units, best) if outcome.feasible else 0.0
    return Grade(
        reward, to_usd(outcome.units), to_usd(best), outcome.feasible, outcome.feasible and outcome.units == best
    )


def reward_of(units: int, best: int) -> float:
    """The reward of a feasible schedule that earns ``units``, on a day whose best one earns ``best``."""
    if units == best:
        return 1.0
    return IDLE_REWARD + (1.0 - IDLE_REWARD) * units / best if units >= 0 else 0.0


def greedy(battery: Battery, cents: Sequence[int]) -> tuple[int, ...]:
    """The greedy rule: fill up in the cheapest hours, sell in the dearest, wherever the state of charge allows it.

    It takes as many hours of either kind as a full charge needs and doesn't look at what lies between them.
    """
    wanted = -(-battery.capacity // battery.max_step)
    by_price = sorted(range(len(cents)), key=lambda hour: (cents[hour], hour))
    cheap, dear = set(by_price[:wanted]), set(by_price[-wanted:])
    held, schedule = battery.start, []
    for hour in range(len(cents)):
        move = 0
        if hour in cheap:
            move = min(battery.max_step, battery.capacity - held)
        elif hour in dear:
            move = -min(battery.max_step, held)
        schedule.append(move)
        held += move
    return tuple(schedule)

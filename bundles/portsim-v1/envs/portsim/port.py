"""A quay and the ships that want a berth: which plans can be kept, what they cost, the best one, and the grade.

Time is counted in whole hours from the start of the task. A plan gives every ship a berth and the hour it starts
there. Its cost is the time the ships spend in port, each hour weighted by the ship's priority; all of it is whole
numbers, so no rounding decides whether a plan is the best one.

The module needs the standard library only: the env, the generator and the tests import this one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Berth:
    """A place at the quay; ships up to ``length`` metres fit."""

    name: str
    length: int


@dataclass(frozen=True)
class Ship:
    """A ship that calls.

    Attributes:
        name: Unique in a task.
        length: Metres.
        arrival: The hour from which it can berth.
        hours: How long it occupies its berth.
        priority: Cost of each hour from its arrival until it has left.
    """

    name: str
    length: int
    arrival: int
    hours: int
    priority: int


@dataclass(frozen=True)
class Call:
    """One line of a plan: where a ship berths, and when it starts."""

    ship: str
    berth: str
    start: int


Plan = tuple[Call, ...]


class PlanError(ValueError):
    """A plan that can't be read or kept; the message says what to mend."""


@dataclass(frozen=True)
class Situation:
    """What has to be planned: the quay, the ships, the hour it is, and what has already begun.

    Attributes:
        berths: The quay.
        ships: All ships of the task that are known by now.
        now: The hour it is; nothing new starts before it.
        begun: Calls that started before ``now``: they stand.
    """

    berths: tuple[Berth, ...]
    ships: tuple[Ship, ...]
    now: int = 0
    begun: Plan = ()

    @property
    def open(self) -> tuple[Ship, ...]:
        """The ships that a plan has to place."""
        settled = {call.ship for call in self.begun}
        return tuple(ship for ship in self.ships if ship.name not in settled)

    def ship(self, name: str) -> Ship:
        """The ship of that name; ``KeyError`` where there is none."""
        return {ship.name: ship for ship in self.ships}[name]

    def free_from(self) -> tuple[int, ...]:
        """For each berth the first hour at which it is free."""
        ends = {berth.name: self.now for berth in self.berths}
        for call in self.begun:
            ends[call.berth] = max(ends[call.berth], call.start + self.ship(call.ship).hours)
        return tuple(ends[berth.name] for berth in self.berths)


def read_plan(situation: Situation, plan: Any) -> Plan:
    """Checks a plan as a model sends it: a list of ``{"ship", "berth", "start"}``, one for each ship to be placed.

    A ship whose call has begun may be left out, or stand as it is.

    Returns:
        The calls of the ships that were to be placed, in the order of their start.

    Raises:
        PlanError: Its form is wrong, or it can't be kept.
    """
    if not isinstance(plan, list | tuple):
        raise PlanError(f'expected a list of {{"ship", "berth", "start"}}, got {type(plan).__name__}')
    begun = {call.ship: call for call in situation.begun}
    calls: dict[str, Call] = {}
    for number, line in enumerate(plan):
        call = _read_call(situation, number, line)
        if call.ship in calls:
            raise PlanError(f"{call.ship} is in the plan twice")
        if call.ship in begun and call != begun[call.ship]:
            raise PlanError(f"{call.ship} has berthed at {begun[call.ship].berth} at hour {begun[call.ship].start}")
        calls[call.ship] = call
    missing = [ship.name for ship in situation.open if ship.name not in calls]
    if missing:
        raise PlanError(f"no berth for {', '.join(missing)}")
    placed = tuple(sorted((calls[ship.name] for ship in situation.open), key=lambda call: (call.start, call.ship)))
    _check_overlaps(situation, placed)
    return placed


def _read_call(situation: Situation, number: int, line: Any) -> Call:
    if not isinstance(line, Mapping) or set(line) != {"ship", "berth", "start"}:
        raise PlanError(f'entry {number}: expected exactly the keys "ship", "berth" and "start"')
    name, where, start = line["ship"], line["berth"], line["start"]
    ship = next((ship for ship in situation.ships if ship.name == name), None)
    berth = next((berth for berth in situation.berths if berth.name == where), None)
    if ship is None:
        raise PlanError(f"entry {number}: there is no ship {name!r}")
    if berth is None:
        raise PlanError(f"{ship.name}: there is no berth {where!r}")
    if isinstance(start, bool) or not isinstance(start, int):
        raise PlanError(f"{ship.name}: start is a whole hour, not {start!r}")
    if ship.length > berth.length:
        raise PlanError(f"{ship.name} is {ship.length} m long, and berth {berth.name} takes {berth.length} m")
    call = Call(ship.name, berth.name, start)
    if call not in situation.begun and start < max(ship.arrival, situation.now):
        earliest = max(ship.arrival, situation.now)
        raise PlanError(f"{ship.name} can't start before hour {earliest}, and the plan says {start}")
    return call


def _check_overlaps(situation: Situation, placed: Iterable[Call]) -> None:
    by_berth: dict[str, list[Call]] = {}
    for call in (*situation.begun, *placed):
        by_berth.setdefault(call.berth, []).append(call)
    for berth, calls in by_berth.items():
        calls.sort(key=lambda call: call.start)
        for before, after in pairwise(calls):
            leaves = before.start + situation.ship(before.ship).hours
            if after.start < leaves:
                raise PlanError(
                    f"berth {berth}: {after.ship} starts at {after.start}, and {before.ship} is there until {leaves}"
                )


def cost(situation: Situation, placed: Iterable[Call]) -> int:
    """Weighted hours in port of the ships that were to be placed: priority times the hours from arrival to leaving."""
    total = 0
    for call in placed:
        ship = situation.ship(call.ship)
        total += ship.priority * (call.start + ship.hours - ship.arrival)
    return total


def first_come(situation: Situation) -> Plan:
    """The plan of the harbour office: in the order of arrival, each ship where it can start first."""
    free = list(situation.free_from())
    plan = []
    for ship in sorted(situation.open, key=lambda ship: (ship.arrival, ship.name)):
        start, index = min(
            (max(free[index], ship.arrival), index)
            for index, berth in enumerate(situation.berths)
            if ship.length <= berth.length
        )
        plan.append(Call(ship.name, situation.berths[index].name, start))
        free[index] = start + ship.hours
    return tuple(plan)


def optimum(situation: Situation) -> Plan:
    """A plan that no other beats; exact.

    A cost that only grows with time has a best plan in which every ship starts as early as the order at its berth
    allows. So it is enough to look at all ways to append ships to berths; ways that have placed the same ships and
    left the berths free from the same hours go on alike, and are looked at once (dynamic programming over the ships
    placed and the hours the berths are free from).
    """
    ships = situation.open
    everybody = (1 << len(ships)) - 1
    best: dict[tuple[int, tuple[int, ...]], tuple[int, Plan]] = {}

    def rest(placed: int, free: tuple[int, ...]) -> tuple[int, Plan]:
        if placed == everybody:
            return 0, ()
        key = (placed, free)
        if key not in best:
            best[key] = min(_ways(placed, free), key=lambda way: way[0])
        return best[key]

    def _ways(placed: int, free: tuple[int, ...]) -> Iterable[tuple[int, Plan]]:
        for number, ship in enumerate(ships):
            if placed >> number & 1:
                continue
            for index, berth in enumerate(situation.berths):
                if ship.length > berth.length:
                    continue
                start = max(free[index], ship.arrival)
                then = (*free[:index], start + ship.hours, *free[index + 1 :])
                after, plan = rest(placed | 1 << number, then)
                here = ship.priority * (start + ship.hours - ship.arrival)
                yield here + after, (Call(ship.name, berth.name, start), *plan)

    return rest(0, situation.free_from())[1]


@dataclass(frozen=True)
class Grade:
    """What a plan is worth.

    Attributes:
        score: 0 for no plan, and for one that is no better than the harbour office's; 1 for the best there is;
            between them in proportion to the cost saved.
        cost: What it costs; None where there is no plan.
        first_come: What the harbour office's costs.
        optimum: What the best one costs.
    """

    score: float
    cost: int | None
    first_come: int
    optimum: int

    @property
    def optimal(self) -> bool:
        """Whether no plan is better."""
        return self.cost == self.optimum


def grade(situation: Situation, placed: Plan | None) -> Grade:
    """Grades a plan that was submitted, or None where none was."""
    office, least = cost(situation, first_come(situation)), cost(situation, optimum(situation))
    if placed is None:
        return Grade(0.0, None, office, least)
    paid = cost(situation, placed)
    if paid == least:
        return Grade(1.0, paid, office, least)
    saved = (office - paid) / (office - least) if office > least else 0.0
    return Grade(max(0.0, saved), paid, office, least)


def lines(plan: Iterable[Call]) -> list[dict[str, Any]]:
    """A plan as it is sent and shown."""
    return [{"ship": call.ship, "berth": call.berth, "start": call.start} for call in plan]


def read_scenario(scenario: Mapping[str, Any]) -> tuple[Situation, tuple[Mapping[str, Any], ...]]:
    """The first situation of a task, and the notices that come later, in order.

    A notice holds the hour it comes at (``now``), and the ships that are new or not as they were (``ships``).
    """
    berths = tuple(Berth(**berth) for berth in scenario["berths"])
    ships = tuple(Ship(**ship) for ship in scenario["ships"])
    return Situation(berths, ships), tuple(scenario.get("notices", ()))


def after_notice(situation: Situation, in_force: Sequence[Call], notice: Mapping[str, Any]) -> Situation:
    """The situation once a notice has come: what began before it stands, and ships are as the notice says.

    Args:
        situation: The situation before.
        in_force: The plan that was followed until now, without what had begun before.
        notice: See :func:`read_scenario`.
    """
    begun = (*situation.begun, *(call for call in in_force if call.start < notice["now"]))
    ships = {ship.name: ship for ship in situation.ships} | {ship["name"]: Ship(**ship) for ship in notice["ships"]}
    return Situation(situation.berths, tuple(ships.values()), notice["now"], begun)

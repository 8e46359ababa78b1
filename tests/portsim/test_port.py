"""The rules of the quay, and that the optimum is one."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest


@pytest.fixture
def quay(port: Any) -> Any:
    """Two berths; Ana and Bea are there from the start, Cid comes later and is too long for the short berth."""
    berths = (port.Berth("long", 300), port.Berth("short", 150))
    ships = (
        port.Ship("Ana", 120, 0, 5, 1),
        port.Ship("Bea", 140, 0, 3, 4),
        port.Ship("Cid", 280, 4, 2, 2),
    )
    return port.Situation(berths, ships)


def line(ship: str, berth: str, start: Any) -> dict[str, Any]:
    return {"ship": ship, "berth": berth, "start": start}


GOOD = [line("Ana", "short", 3), line("Bea", "short", 0), line("Cid", "long", 4)]


def test_a_plan_costs_the_weighted_hours_in_port(port: Any, quay: Any) -> None:
    placed = port.read_plan(quay, GOOD)
    assert [call.ship for call in placed] == ["Bea", "Ana", "Cid"]
    assert port.cost(quay, placed) == 4 * 3 + 1 * 8 + 2 * 2


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("soon", "expected a list"),
        ([*GOOD[:2]], "no berth for Cid"),
        ([*GOOD, GOOD[0]], "Ana is in the plan twice"),
        ([*GOOD[:2], {"ship": "Cid", "berth": "long"}], "entry 2: expected exactly the keys"),
        ([*GOOD[:2], line("Dan", "long", 4)], "there is no ship 'Dan'"),
        ([*GOOD[:2], line("Cid", "west", 4)], "there is no berth 'west'"),
        ([*GOOD[:2], line("Cid", "short", 4)], "Cid is 280 m long, and berth short takes 150 m"),
        ([*GOOD[:2], line("Cid", "long", 3)], "Cid can't start before hour 4"),
        ([*GOOD[:2], line("Cid", "long", True)], "start is a whole hour, not True"),
        ([*GOOD[:2], line("Cid", "long", "4")], "start is a whole hour, not '4'"),
        ([line("Ana", "short", 2), *GOOD[1:]], "berth short: Ana starts at 2, and Bea is there until 3"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused_with_what_to_mend(port: Any, quay: Any, plan: Any, message: str) -> None:
    with pytest.raises(port.PlanError, match=message):
        port.read_plan(quay, plan)


def test_after_a_notice_what_has_begun_stands(port: Any, quay: Any) -> None:
    placed = port.read_plan(quay, GOOD)
    later = port.after_notice(quay, placed, {"now": 2, "ships": [{**vars(quay.ship("Cid")), "arrival": 9}]})
    assert [ship.name for ship in later.open] == ["Ana", "Cid"]
    assert later.free_from() == (2, 3)
    with pytest.raises(port.PlanError, match="Bea has berthed at short at hour 0"):
        port.read_plan(later, [line("Ana", "short", 3), line("Bea", "long", 2), line("Cid", "long", 9)])
    for again in ([], [line("Bea", "short", 0)]):
        assert len(port.read_plan(later, [line("Ana", "short", 3), line("Cid", "long", 9), *again])) == 2
    with pytest.raises(port.PlanError, match="Cid can't start before hour 9"):
        port.read_plan(later, GOOD)


def every_plan(port: Any, situation: Any) -> Any:
    """All plans in which each ship starts as soon as the order at its berth allows: no other can be cheaper."""
    for order in itertools.permutations(situation.open):
        for berths in itertools.product(range(len(situation.berths)), repeat=len(order)):
            free, plan = list(situation.free_from()), []
            for ship, index in zip(order, berths, strict=True):
                if ship.length > situation.berths[index].length:
                    break
                start = max(free[index], ship.arrival)
                free[index] = start + ship.hours
                plan.append(port.Call(ship.name, situation.berths[index].name, start))
            else:
                yield plan


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_is_what_trying_every_plan_finds(port: Any, seed: int) -> None:
    stream = random.Random(seed)
    berths = tuple(port.Berth(f"b{number}", stream.choice((200, 300))) for number in range(stream.randint(1, 3)))
    longest = max(berth.length for berth in berths)
    ships = tuple(
        port.Ship(
            f"s{number}", stream.randint(100, longest), stream.randint(0, 9), stream.randint(1, 6), stream.randint(1, 5)
        )
        for number in range(stream.randint(2, 4))
    )
    situation = port.Situation(berths, ships, stream.randint(0, 3))
    best = port.optimum(situation)
    assert port.read_plan(situation, port.lines(best)) == tuple(sorted(best, key=lambda call: (call.start, call.ship)))
    assert port.cost(situation, best) == min(port.cost(situation, plan) for plan in every_plan(port, situation))


def test_waiting_never_makes_a_plan_cheaper(port: Any, quay: Any) -> None:
    least = port.cost(quay, port.optimum(quay))
    for starts in itertools.product(range(9), repeat=3):
        for berths in itertools.product(("long", "short"), repeat=3):
            plan = [line(name, *call) for name, *call in zip(("Ana", "Bea", "Cid"), berths, starts, strict=True)]
            try:
                placed = port.read_plan(quay, plan)
            except port.PlanError:
                continue
            assert port.cost(quay, placed) >= least


def test_grades(port: Any, quay: Any) -> None:
    office, best = port.first_come(quay), port.optimum(quay)
    assert port.grade(quay, None).score == 0
    assert port.grade(quay, office).score == (1.0 if port.cost(quay, office) == port.cost(quay, best) else 0.0)
    top = port.grade(quay, best)
    assert (top.score, top.optimal) == (1.0, True)
    worse = port.read_plan(quay, [line("Ana", "long", 6), line("Bea", "short", 0), line("Cid", "long", 4)])
    assert 0 <= port.grade(quay, worse).score < 1


def test_a_plan_halfway_between_scores_a_half(port: Any) -> None:
    berth = port.Berth("only", 300)
    ships = (port.Ship("A-slow", 100, 0, 8, 1), port.Ship("B-dear", 100, 0, 2, 5), port.Ship("C-mid", 100, 0, 4, 2))
    situation = port.Situation((berth,), ships)
    grades = {
        order: port.grade(situation, plan)
        for order in itertools.permutations(("A-slow", "B-dear", "C-mid"))
        if (plan := _in_order(port, situation, order))
    }
    for grade in grades.values():
        saved = (grade.first_come - grade.cost) / (grade.first_come - grade.optimum)
        assert grade.score == pytest.approx(max(0.0, saved))
    assert {grade.score for grade in grades.values()} >= {0.0, 1.0}
    assert any(0 < grade.score < 1 for grade in grades.values())


def _in_order(port: Any, situation: Any, order: tuple[str, ...]) -> Any:
    start, plan = 0, []
    for name in order:
        plan.append(port.Call(name, "only", start))
        start += situation.ship(name).hours
    return tuple(plan)

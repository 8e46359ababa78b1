"""Scenarios: a quay, the ships that come, and the news of the days after."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from paths import port

QUAY = ({"name": "North", "length": 360}, {"name": "South", "length": 220})
NAMES = [
    "Alba",
    "Brisa",
    "Cala",
    "Duna",
    "Estela",
    "Faro",
    "Garbí",
    "Hedra",
    "Iris",
    "Jara",
    "Levante",
    "Marina",
    "Nerea",
    "Onda",
    "Punta",
    "Quilla",
    "Ribera",
    "Salina",
    "Tramuntana",
    "Ulisses",
    "Vela",
    "Xaloc",
    "Yola",
    "Zafir",
]
SHIPS = 6
NOTICES = 2
SLACK = 6
"""What can at least be saved in each turn against the harbour office's plan: else there is nothing to learn."""

Scenario = dict[str, Any]


def scenarios(seed: int, split: str) -> Iterator[Scenario]:
    """Endless scenarios of a split; equal seeds give equal ones, and splits never share a stream."""
    stream = random.Random(f"portsim-v1/{split}/{seed}")
    while True:
        scenario = _draw(stream)
        if _worthwhile(scenario):
            yield scenario


def _draw(stream: random.Random) -> Scenario:
    names = stream.sample(NAMES, SHIPS + NOTICES)
    arrivals = sorted(stream.randint(0, 26) for _ in range(SHIPS))
    ships = [_ship(stream, name, arrival) for name, arrival in zip(names, arrivals, strict=False)]
    notices = []
    known = {ship["name"]: ship for ship in ships}
    for number, newcomer in enumerate(names[SHIPS:]):
        now = stream.randint(5, 9) + 8 * number
        kind: Callable[..., dict[str, Any]] = stream.choice((_late, _slow, _extra))
        notice = kind(stream, now, [ship for ship in known.values() if ship["arrival"] > now], newcomer)
        known |= {ship["name"]: ship for ship in notice["ships"]}
        notices.append(notice)
    return {"berths": [dict(berth) for berth in QUAY], "ships": ships, "notices": notices}


def _ship(stream: random.Random, name: str, arrival: int) -> dict[str, Any]:
    return {
        "name": name,
        "length": 10 * stream.randint(12, 34),
        "arrival": arrival,
        "hours": stream.randint(3, 9),
        "priority": stream.choice((1, 1, 2, 3, 5)),
    }


def _late(stream: random.Random, now: int, coming: list[dict[str, Any]], newcomer: str) -> dict[str, Any]:
    if not coming:
        return _extra(stream, now, coming, newcomer)
    ship = stream.choice(coming)
    changed = ship | {"arrival": ship["arrival"] + stream.randint(3, 8)}
    news = f"{ship['name']} is late: it arrives at hour {changed['arrival']}, not {ship['arrival']}."
    return {"now": now, "news": news, "ships": [changed]}


def _slow(stream: random.Random, now: int, coming: list[dict[str, Any]], newcomer: str) -> dict[str, Any]:
    if not coming:
        return _extra(stream, now, coming, newcomer)
    ship = stream.choice(coming)
    changed = ship | {"hours": ship["hours"] + stream.randint(2, 5)}
    news = f"{ship['name']} has more cargo: it needs {changed['hours']} hours at its berth, not {ship['hours']}."
    return {"now": now, "news": news, "ships": [changed]}


def _extra(stream: random.Random, now: int, coming: list[dict[str, Any]], newcomer: str) -> dict[str, Any]:
    ship = _ship(stream, newcomer, now + stream.randint(1, 6))
    news = (
        f"One more ship: {ship['name']}, {ship['length']} m, arrives at hour {ship['arrival']}, needs {ship['hours']} "
        f"hours at its berth, priority {ship['priority']}."
    )
    return {"now": now, "news": news, "ships": [ship]}


def _worthwhile(scenario: Scenario) -> bool:
    """Whether there is something to save in every turn of whoever plans the turns before as well as can be."""
    situation, notices = port.read_scenario(scenario)
    for notice in (*notices, None):
        best = port.optimum(situation)
        if port.cost(situation, port.first_come(situation)) - port.cost(situation, best) < SLACK:
            return False
        if notice is not None:
            situation = port.after_notice(situation, best, notice)
    return True

"""Synthetic day-ahead prices: a small model of a power market, one day at a time.

Prices come about as they do in a real market. Demand follows the season and the weekday; wind and sun take their share
of it; what is left (the *net load*) is met by the cheapest plants first, so the price climbs slowly through the middle
of the supply curve, steeply towards its end, and falls below zero where wind and sun are more than enough.

The weather makes the days differ: fronts that let the wind rise or fall within a few hours, cloudy mornings, cold
nights that put the peak before dawn, outages at any hour. So no fixed schedule suits them all.

A day depends on the seed and its date alone: the same pair gives the same prices, whatever else is generated.
Standard library only.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from dataclasses import dataclass

HOURS = 24
PRICE_FLOOR, PRICE_CAP = -40.0, 5000.0
GAS_PRICE = {
    2014: 4.3, 2015: 2.6, 2016: 2.4, 2017: 2.9, 2018: 3.1, 2019: 2.5,
    2020: 2.0, 2021: 3.8, 2022: 6.3, 2023: 2.5, 2024: 2.2, 2025: 3.4,
}  # fmt: skip
"""A year's typical gas price in USD/MMBtu; it sets the level of the middle of the supply curve."""


@dataclass(frozen=True)
class _Bump:
    """A rise or fall around one hour: ``height`` at ``hour``, fading over ``width`` hours, past midnight too."""

    hour: float
    width: float
    height: float

    def at(self, hour: float) -> float:
        distance = (hour - self.hour + 12.0) % 24.0 - 12.0
        return self.height * math.exp(-0.5 * (distance / self.width) ** 2)


def prices(date: dt.date, seed: int) -> list[float]:
    """The 24 hourly prices of ``date`` in USD/MWh, with cents."""
    rng = random.Random(f"gridsim:{seed}:{date.isoformat()}")
    demand = _demand(date, rng)
    renewables = _renewables(date, rng)
    outage = _outage(rng)
    level = 9.0 * GAS_PRICE.get(date.year, 3.0) * rng.lognormvariate(0.0, 0.18)
    noise = 0.0
    day = []
    for hour in range(HOURS):
        noise = 0.5 * noise + rng.gauss(0.0, 0.012)
        net = demand[hour] - renewables[hour] + outage[hour] + noise
        day.append(round(min(PRICE_CAP, max(PRICE_FLOOR, _supply(net, level))), 2))
    return day


def _supply(net: float, level: float) -> float:
    """Price at a net load (1 is an ordinary full day's load)."""
    price = level * (0.35 + 0.95 * net)
    if net < 0.28:  # must-run plants and subsidised wind pay to stay on
        price -= 110.0 * (0.28 - net)
    if net > 0.92:  # peakers, then the last plants there are
        price += level * (math.exp(7.0 * min(net - 0.92, 0.75)) - 1.0)
    return price


def _season(date: dt.date) -> tuple[float, float]:
    """How much of summer and of winter the date has, each 0 to 1."""
    angle = 2 * math.pi * (date.timetuple().tm_yday - 20) / 365.25
    return max(0.0, -math.cos(angle)), max(0.0, math.cos(angle))


def _demand(date: dt.date, rng: random.Random) -> list[float]:
    summer, winter = _season(date)
    bumps = [_Bump(rng.gauss(19.0, 1.8), rng.uniform(1.2, 3.0), rng.uniform(0.0, 0.22))]
    if rng.random() < 0.35 + 0.6 * winter:
        height = rng.uniform(0.06, 0.16) + 0.2 * winter * rng.random()
        bumps.append(_Bump(rng.gauss(7.5, 1.3), rng.uniform(1.0, 2.6), height))
    if rng.random() < summer:
        bumps.append(_Bump(rng.gauss(16.5, 1.6), rng.uniform(2.0, 4.0), rng.uniform(0.1, 0.38) * summer))
    if rng.random() < 0.12 + 0.25 * winter:  # a cold night: heating peaks in the dark
        bumps.append(_Bump(rng.gauss(3.0, 1.8), rng.uniform(1.5, 3.2), rng.uniform(0.12, 0.4)))
    if rng.random() < 0.25:  # industry, or what the forecast expected elsewhere
        bumps.append(_Bump(rng.uniform(0.0, 24.0), rng.uniform(1.0, 3.0), rng.uniform(-0.18, 0.22)))
    bumps.append(_Bump(rng.gauss(3.0, 1.8), rng.uniform(2.0, 4.0), -rng.uniform(0.0, 0.14)))
    base = 0.66 + 0.10 * summer + 0.06 * winter - (0.06 if date.weekday() >= 5 else 0.0) + rng.gauss(0.0, 0.05)
    return [base + sum(bump.at(hour + 0.5) for bump in bumps) for hour in range(HOURS)]


def _renewables(date: dt.date, rng: random.Random) -> list[float]:
    summer, _ = _season(date)
    built = (date.year - 2014) / 11
    wind = (0.14 + 0.08 * built) * rng.betavariate(1.6, 1.8) * 2
    swing = wind * rng.uniform(0.1, 0.6)
    phase, period = rng.uniform(0.0, 24.0), rng.uniform(11.0, 30.0)
    front = rng.choice((-1.0, 1.0)) * rng.uniform(0.05, 0.3) if rng.random() < 0.6 else 0.0
    front_hour, front_speed = rng.uniform(2.0, 22.0), rng.uniform(0.7, 3.0)
    sun = (0.08 + 0.20 * built) * rng.uniform(0.1, 1.0)
    noon, half = rng.gauss(13.0, 1.0), 5.2 + 1.3 * summer
    clouds = _Bump(rng.uniform(8.0, 18.0), rng.uniform(1.0, 2.5), rng.uniform(0.2, 0.9)) if rng.random() < 0.4 else None
    output = []
    for hour in range(HOURS):
        middle = hour + 0.5
        air = wind + swing * math.sin(2 * math.pi * (middle - phase) / period)
        air += front / (1.0 + math.exp(-(middle - front_hour) / front_speed)) - front / 2
        light = max(0.0, 1.0 - ((middle - noon) / half) ** 2) ** 0.8 * sun
        if clouds is not None:
            light *= 1.0 - clouds.at(middle)
        output.append(max(0.0, air) + light)
    return output


def _outage(rng: random.Random) -> list[float]:
    """Plants that fail: missing supply over a few hours, at any time of the day."""
    missing = [0.0] * HOURS
    while rng.random() < 0.3:
        first, hours, size = rng.randrange(HOURS), rng.randint(1, 4), rng.uniform(0.08, 0.4)
        for hour in range(first, min(HOURS, first + hours)):
            missing[hour] += size
    return missing

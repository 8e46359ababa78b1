"""The days a bundle is made of: where their prices come from, and which of them become tasks."""

from __future__ import annotations

import csv
import datetime as dt
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import market
from paths import battery

HOURS = battery.HOURS
MIN_PROFIT_USD = 200.0
"""A day whose best schedule earns less is left out: hardly anything tells its good schedules from its bad ones."""

Days = dict[dt.date, list[float]]


class GeneratorError(Exception):
    """Something to mend in what the generator was given."""


@dataclass(frozen=True)
class Chosen:
    """The days of the two splits, each by date."""

    train: Days
    eval: Days


def synthetic(seed: int, first: dt.date, last: dt.date) -> Days:
    """Synthetic prices for every day from ``first`` to ``last``."""
    dates = (first + dt.timedelta(days=number) for number in range((last - first).days + 1))
    return {date: market.prices(date, seed) for date in dates}


def choose(days: Mapping[dt.date, list[float]], seed: int, *, train: int, held_out: int, eval_from: dt.date) -> Chosen:
    """Draws ``train`` days from before ``eval_from`` and ``held_out`` days from there on, of those worth trading.

    Raises:
        GeneratorError: There are not as many.
    """
    worth = [date for date in sorted(days) if _best_usd(days[date]) >= MIN_PROFIT_USD]
    before, after = [date for date in worth if date < eval_from], [date for date in worth if date >= eval_from]
    for have, want, option in ((before, train, "--train-days"), (after, held_out, "--eval-days")):
        if len(have) < want:
            side = "before" if have is before else "from"
            raise GeneratorError(
                f"{want} days {side} {eval_from} are asked for, and only {len(have)} of those given earn at least "
                f"${MIN_PROFIT_USD:g}: give more days, or {option} {len(have)}"
            )
    rng = random.Random(f"gridsim:{seed}:days")
    picked = sorted(rng.sample(before, train)), sorted(rng.sample(after, held_out))
    return Chosen(*({date: days[date] for date in dates} for dates in picked))


def _best_usd(prices: list[float]) -> float:
    _, units = battery.optimum(battery.BATTERY, battery.to_cents(prices))
    return battery.to_usd(units)


DATE_NAMES = ("date", "deliverydate", "operatingday")
HOUR_NAMES = ("hour", "hourending")
PRICE_NAMES = ("price", "settlementpointprice", "spp", "lmp")
POINT_NAMES = ("settlementpoint", "settlementpointname", "hub")


def from_csv(path: Path, hub: str) -> Days:
    """Prices from a CSV with one line an hour: a date, an hour and a price, as ERCOT publishes them or simpler.

    The columns may be called ``date``/``DeliveryDate``, ``hour`` (0 to 23) or ``HourEnding`` (1 to 24, ``01:00`` to
    ``24:00``), ``price``/``SettlementPointPrice``, in any case, with spaces or underscores. Where a column names the
    settlement point, only the lines of ``hub`` are read. Days without exactly 24 hours (clock changes, gaps) are left
    out.

    Raises:
        GeneratorError: A column is missing, or a line can't be read; the message names the line.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.DictReader(file)
        names = {name.lower().replace(" ", "").replace("_", ""): name for name in lines.fieldnames or ()}
        date_column, hour_column, price_column = (
            _column(names, wanted, path) for wanted in (DATE_NAMES, HOUR_NAMES, PRICE_NAMES)
        )
        point_column = next((names[name] for name in POINT_NAMES if name in names), None)
        ends = names.get("hourending") == hour_column
        found: dict[dt.date, dict[int, float]] = defaultdict(dict)
        twice: set[dt.date] = set()
        for line in lines:
            if point_column is not None and line[point_column].strip() != hub:
                continue
            try:
                date = _date(line[date_column])
                hour = int(line[hour_column].partition(":")[0]) - ends
                price = round(float(line[price_column]), 2)
            except (ValueError, TypeError, AttributeError) as exc:
                raise GeneratorError(f"{path}, line {lines.line_num}: {exc}") from exc
            if hour in found[date]:
                twice.add(date)
            found[date][hour] = price
    whole = set(range(HOURS))
    return {
        date: [hours[hour] for hour in range(HOURS)]
        for date, hours in found.items()
        if set(hours) == whole and date not in twice
    }


def _column(names: Mapping[str, str], wanted: tuple[str, ...], path: Path) -> str:
    for name in wanted:
        if name in names:
            return names[name]
    has = ", ".join(names.values()) or "none"
    raise GeneratorError(f"{path} has no column called {' or '.join(wanted)}; it has {has}")


def _date(text: str) -> dt.date:
    text = text.strip()
    return dt.datetime.strptime(text, "%m/%d/%Y").date() if "/" in text else dt.date.fromisoformat(text)

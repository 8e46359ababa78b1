"""From a verifier's rows to one score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""One row of a verifier: ``result``, ``score`` and ``weight`` are read, everything else is evidence."""

_PLAIN = (bool, int, float, type(None))


def check_rows(rows: Any) -> list[dict[str, Any]]:
    """What a verifier returned, if it is rows.

    ``score`` and ``weight`` must be finite numbers in every row, whether or not the aggregator will read them. What a
    ``result`` must be depends on the aggregator, so :func:`aggregate` sees to it.

    Raises:
        ValueError: It isn't; the message names the row, the key and the value.
    """
    if not isinstance(rows, list):
        raise ValueError(f"verify must return a list of dicts, and returned {_show(rows)}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} must be a dict, and is {_show(row)}")
        for key in ("score", "weight"):
            if not _is_number(row.get(key)):
                raise ValueError(f"{key} of {_name(number, row)} must be a finite number, and is {_show(row[key])}")
    return rows


def aggregate(name: str, rows: Sequence[Row]) -> float:
    """The score of checked rows under an aggregator of :data:`AGGREGATORS`; 0 where there are no rows.

    A ``result`` that is read must be true or false: a text such as ``"fail"`` would count as true. Numbers are taken
    for their truth, and a missing ``result`` or None is false. A missing ``weight`` or None is 1.

    Raises:
        ValueError: A result that is read is none; or the numbers are so large that there is no finite score.
    """
    for number, row in enumerate(rows):
        read = name != "weighted_average" or row.get("score") is None
        if read and not isinstance(row.get("result"), _PLAIN):
            raise ValueError(f"result of {_name(number, row)} must be True or False, and is {_show(row['result'])}")
    return AGGREGATORS[name](rows) if rows else 0.0


def _is_number(value: Any) -> bool:
    try:
        return value is None or (isinstance(value, int | float) and math.isfinite(value))
    except OverflowError:  # an int that no float can hold
        return False


def _name(number: int, row: Row) -> str:
    return f"row {number}" + (f" ({row['id']!r})" if isinstance(row.get("id"), str) else "")


_NO_JSON = ("NaN", "Infinity", "-Infinity")
"""Numbers that JSON doesn't have come from the verifier's process as these texts."""


def _show(value: Any) -> str:
    if value in _NO_JSON:
        return str(value)
    text = f"a number of {value.bit_length()} bits" if isinstance(value, int) and abs(value) > 1e300 else repr(value)
    return f"{text[:80]}{'…' if len(text) > 80 else ''} ({type(value).__name__})"


def _all_pass(rows: Sequence[Row]) -> float:
    return float(all(row.get("result") is True for row in rows))


def _any_pass(rows: Sequence[Row]) -> float:
    return float(any(row.get("result") is True for row in rows))


def _weighted_average(rows: Sequence[Row]) -> float:
    """Positive weights average; a negative one takes off in the measure its row falls short; zero only reports."""
    gained = lost = total = 0.0
    for row in rows:
        weight = 1.0 if row.get("weight") is None else float(row["weight"])
        score = float(bool(row.get("result"))) if row.get("score") is None else float(row["score"])
        if weight > 0:
            gained += weight * score
            total += weight
        elif weight < 0:
            lost -= weight * (1.0 - score)
    if not all(map(math.isfinite, (gained, lost, total, gained - lost))):
        raise ValueError("the rows have no finite score: their weights or scores are too large")
    return min(1.0, max(0.0, (gained - lost) / total)) if total else 0.0


AGGREGATORS: Mapping[str, Callable[[Sequence[Row]], float]] = {
    "all_pass": _all_pass,
    "any_pass": _any_pass,
    "weighted_average": _weighted_average,
}

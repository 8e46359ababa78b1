"""From a verifier's rows to one score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
"""One row of a verifier: ``result``, ``score`` and ``weight`` are read, everything else is evidence."""

_PLAIN = (bool, int, float, type(None))


def check_rows(rows: Any) -> list[dict[str, Any]]:
    """What a verifier returned, if it is rows that can be scored.

    Raises:
        ValueError: It isn't; the message names the row, the key and the value.
    """
    if not isinstance(rows, list):
        raise ValueError(f"verify must return a list of dicts, and returned {_show(rows)}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"row {number} must be a dict, and is {_show(row)}")
        name = f"row {number}" + (f" ({row['id']!r})" if isinstance(row.get("id"), str) else "")
        for key in ("score", "weight"):
            value = row.get(key)
            if not isinstance(value, _PLAIN) or (value is not None and not math.isfinite(value)):
                raise ValueError(f"{key} of {name} must be a finite number, and is {_show(value)}")
        if not isinstance(row.get("result"), _PLAIN):
            raise ValueError(f"result of {name} must be True or False, and is {_show(row['result'])}")
    return rows


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text[:80]}{'…' if len(text) > 80 else ''} ({type(value).__name__})"


def aggregate(name: str, rows: Sequence[Row]) -> float:
    """The score of checked rows under an aggregator of :data:`AGGREGATORS`; 0 where there are no rows.

    Raises:
        ValueError: The weights are so large that there is no finite score.
    """
    score = AGGREGATORS[name](rows) if rows else 0.0
    if not math.isfinite(score):
        raise ValueError(f"the rows have no finite score ({score}): their weights or scores are too large")
    return score


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
        else:
            lost += -weight * (1.0 - score)
    if total == 0:
        return 0.0
    score = (gained - lost) / total
    return score if math.isnan(score) else min(1.0, max(0.0, score))


AGGREGATORS: Mapping[str, Callable[[Sequence[Row]], float]] = {
    "all_pass": _all_pass,
    "any_pass": _any_pass,
    "weighted_average": _weighted_average,
}

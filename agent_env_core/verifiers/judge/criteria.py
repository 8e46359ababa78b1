"""The criteria of a rubric: what is wrong with them, and the marks they allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Criterion = Mapping[str, Any]
"""One criterion as its author wrote it: ``id``, its text in ``criterion`` or ``title``, and more that its row keeps."""

PASS_MARK = 0.5
"""From which score on a criterion with marks in between has passed, where it doesn't say itself."""


def criteria_faults(criteria: Sequence[Criterion]) -> Iterator[str]:
    """What is wrong with criteria: one line each."""
    seen: set[str] = set()
    for number, criterion in enumerate(criteria):
        key, place = criterion.get("id"), f"criteria.{number}"
        if not isinstance(key, str) or not key:
            yield f"{place}.id: should be a text that isn't empty, not {key!r}"
        elif key in seen:
            yield f"{place}.id: {key!r} is also that of an earlier criterion"
        else:
            seen.add(key)
        if not text_of(criterion):
            yield f"{place} has no text: write it as 'criterion'"
        weight = criterion.get("weight")
        if weight is not None and not is_number(weight):
            yield f"{place}.weight: should be a finite number, not {weight!r}"
        yield from (f"{place}.{fault}" for fault in _mark_faults(criterion))


def _mark_faults(criterion: Criterion) -> Iterator[str]:
    outcomes, mark = criterion.get("outcomes"), criterion.get("pass_threshold")
    if mark is not None and not is_number(mark):
        yield f"pass_threshold: should be a finite number, not {mark!r}"
    if isinstance(outcomes, Mapping):
        if scale_of(criterion) is None:
            yield "outcomes: 'min' and 'max' should be numbers, or objects with a 'value', and min the lower one"
    elif isinstance(outcomes, list):
        if not outcomes or not all(isinstance(one, Mapping) and is_number(one.get("score")) for one in outcomes):
            yield "outcomes: each should be an object with a number as 'score'"
    elif outcomes is not None:
        yield f"outcomes: should be a list, or an object with 'min' and 'max', not {outcomes!r}"


def text_of(criterion: Criterion) -> str:
    """What the criterion asks, in words."""
    for name in ("criterion", "title", "description"):
        if isinstance(text := criterion.get(name), str) and text.strip():
            return text
    return ""


def is_negative(criterion: Criterion) -> bool:
    """Whether the criterion names what should *not* be: its weight is below zero."""
    return (criterion.get("weight") or 0) < 0


def scale_of(criterion: Criterion) -> tuple[float, float] | None:
    """The ends of the scale that ``outcomes`` sets, if it sets one."""
    outcomes = criterion.get("outcomes")
    if not isinstance(outcomes, Mapping):
        return None
    low, high = (one.get("value") if isinstance(one, Mapping) else one for one in map(outcomes.get, ("min", "max")))
    if low is None or high is None or not (is_number(low) and is_number(high)) or low >= high:
        return None
    return float(low), float(high)


def partial_score(criterion: Criterion, mark: float) -> dict[str, Any]:
    """``score`` in 0 … 1 and ``result`` of a mark that a judge gave; ``raw_score`` where the mark was another number.

    A mark on a scale is brought to 0 … 1, and so is ``pass_threshold``; of listed outcomes, the nearest one counts.

    Raises:
        ValueError: There can be no such mark.
    """
    low, high = scale_of(criterion) or (0.0, 1.0)
    outcomes = criterion.get("outcomes")
    if isinstance(outcomes, list):
        listed = [float(one["score"]) for one in outcomes]
        low, high = min(low, *listed), max(high, *listed)
    if not low <= mark <= high:
        raise ValueError(f"{mark:g} is outside {low:g} to {high:g}")
    score = min(listed, key=lambda one: abs(one - mark)) if isinstance(outcomes, list) else mark
    if scale_of(criterion) is not None:
        score = (mark - low) / (high - low)
    score = min(1.0, max(0.0, score))
    threshold = criterion.get("pass_threshold")
    passed = PASS_MARK if threshold is None else float(threshold)
    if threshold is not None and scale_of(criterion) is not None:
        passed = (passed - low) / (high - low)
    found = {"score": score, "result": score >= min(1.0, max(0.0, passed))}
    return found if score == mark else {"raw_score": mark, **found}


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number; true and false are none."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False

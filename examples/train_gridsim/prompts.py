"""The price code: a day's 24 prices as 24 letters, which is all a tiny model needs to read.

A row's prompt is the trainer's to change; the task that its ``index`` plays stays the same. So the demo swaps the
task's JSON, made for a language model that reads numbers, for one letter an hour: ``A`` for the day's cheapest hours up
to ``X`` for its dearest. The code tells when power is cheap and by how much within the day, and nothing about what to
do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Any

LETTERS = ascii_uppercase[:24]
"""One letter a bin, from cheap to dear."""

Message = dict[str, Any]


def task_of(prompt: Sequence[Message]) -> dict[str, Any]:
    """The task a row's prompt states: the JSON object of its user message."""
    task = json.loads(prompt[-1]["content"])
    if not isinstance(task, dict):
        raise TypeError(f"a GridSim prompt ends in a JSON object, not in {type(task).__name__}")
    return task


def code(prices: Sequence[float]) -> str:
    """One letter for each price, by where it lies between the day's cheapest hour and its dearest but one.

    The dearest hour is left out of the scale, so that a lone spike doesn't press all others into one letter.
    """
    low, high = min(prices), sorted(prices)[-2]
    span = max(high - low, 0.01)
    bins = (round((price - low) / span * (len(LETTERS) - 1)) for price in prices)
    return "".join(LETTERS[min(step, len(LETTERS) - 1)] for step in bins)


def coded(prompt: Sequence[Message], shuffle: random.Random | None = None) -> list[Message]:
    """A row's prompt in the price code.

    Args:
        prompt: The row's own prompt.
        shuffle: Where given, the letters are put in an order that says nothing about the day: the test of whether a
            model reads its prompt at all.
    """
    letters = list(code(task_of(prompt)["prices_usd_per_mwh"]))
    if shuffle is not None:
        shuffle.shuffle(letters)
    return [{"role": "user", "content": "".join(letters)}]

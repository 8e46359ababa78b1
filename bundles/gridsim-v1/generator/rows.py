"""Rows for a warm start: each day's prompt, and the call that submits its best schedule."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import tasks
from paths import battery

TOOLS = json.dumps(json.loads(Path(__file__).with_name("tools.json").read_text("utf-8")))
"""The tools as a chat template renders them for GRPO: JSON Schemas of the methods of ``env.factory``, in TRL's order.

A string, because a table of rows would give every tool the parameters of all others. TRL reads it as it is.
"""


def row(date: dt.date, prices: Sequence[float], hub: str = tasks.HUB) -> dict[str, Any]:
    """The row of one day, in TRL's conversational prompt-completion format; thinking is off, as it is in GRPO."""
    schedule, _ = battery.optimum(battery.BATTERY, battery.to_cents(prices))
    call = {"type": "function", "function": {"name": "submit_schedule", "arguments": {"actions": list(schedule)}}}
    return {
        "prompt": [
            {"role": "system", "content": tasks.SYSTEM_PROMPT},
            {"role": "user", "content": tasks.user_prompt(date, prices, hub)},
        ],
        "completion": [{"role": "assistant", "content": rationale(schedule, prices), "tool_calls": [call]}],
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def rationale(schedule: Sequence[int], prices: Sequence[float]) -> str:
    """One line that says what the schedule does and at which prices."""
    told, hour = [], 0
    for action, group in groupby(schedule):
        length = len(list(group))
        if action:
            hours = f"hour {hour}" if length == 1 else f"hours {hour}-{hour + length - 1}"
            average = sum(prices[hour : hour + length]) / length
            told.append(f"{'charge' if action > 0 else 'sell'} in {hours} at {average:.2f}")
        hour += length
    line = ", ".join(told) or "idle all day"
    return line[0].upper() + line[1:] + "."


def write(path: Path, table: Sequence[dict[str, Any]]) -> None:
    """Writes the rows as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in table), "utf-8")

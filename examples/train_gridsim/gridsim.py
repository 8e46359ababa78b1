"""The bundle's own code, for what the demo computes without playing: reports, and what can be had without a model."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from examples.train_gridsim.settings import GENERATOR


def _module(name: str) -> Any:
    """A module of the bundle's generator. A bundle is no package, so it is found by its folder."""
    if str(GENERATOR) not in sys.path:
        sys.path.append(str(GENERATOR))
    return importlib.import_module(name)


def baselines() -> Any:
    """``generator/baselines.py``: the rules, and how to sum up rewards."""
    return _module("baselines")


def report(prices: list[float], actions: list[int]) -> str:
    """What ``submit_schedule`` answers to ``actions`` on a day of ``prices``, word for word."""
    battery = _module("paths").battery
    answer = battery.report(battery.BATTERY, battery.to_cents(prices), actions)
    return json.dumps(answer, separators=(",", ":"))


def max_step() -> int:
    """Actions run from minus this to this."""
    step: int = _module("paths").battery.BATTERY.max_step
    return step

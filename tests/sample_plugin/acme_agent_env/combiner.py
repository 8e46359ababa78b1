"""``reward="within:grade=0.25..0.75"``: how far one score lies in a range, from 0 to 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent_env_core import hookimpl


@dataclass(frozen=True)
class Within:
    """Stretches a part of a score's range to all of it."""

    step: str
    low: float
    high: float

    @property
    def needs(self) -> tuple[str, ...]:
        """The scores it reads; agent-env refuses tasks that don't record them."""
        return (self.step,)

    def __call__(self, scores: Mapping[str, float]) -> float:
        """The reward."""
        return min(1.0, max(0.0, (scores[self.step] - self.low) / (self.high - self.low)))


def within(text: str) -> Within:
    """Reads ``step=low..high``.

    Raises:
        ValueError: It isn't of that form.
    """
    found = re.fullmatch(r"(.+)=(\d*\.?\d+)\.\.(\d*\.?\d+)", text)
    if not found or float(found[2]) >= float(found[3]):
        raise ValueError(f"within:{text} must look like within:grade=0.25..0.75")
    return Within(found[1], float(found[2]), float(found[3]))


@hookimpl
def agent_env_reward_combiners(register: Callable[[str, Callable[[str], Within]], None]) -> None:
    """Registers ``within``."""
    register("within", within)

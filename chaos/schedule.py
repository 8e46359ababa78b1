"""What goes wrong, and when: made from a seed, written as JSON, replayed, and made smaller when it fails.

A schedule is data, so that any run can be had again. Faults belong to a rollout and strike its n-th call of a method,
not a moment of the clock: so they strike the same calls however the rollouts interleave. That is also why this is no
``hypothesis`` test: its examples are independent and small, and here the point is that thousands are side by side.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

KINDS: Mapping[str, tuple[str, ...]] = {
    "create": ("unavailable", "busy", "image", "bug", "hang", "slow", "lost"),
    "endpoint": ("unavailable", "bug", "hang", "slow", "dies"),
    "kill": ("unavailable", "busy", "bug", "hang", "slow", "lost"),
    "env": ("dies", "tool-hangs", "dies-in-call", "tool-slow"),
    "verify": ("raise", "exit", "nonsense", "hang"),
    "player": ("gives-up", "cancelled", "never-ends"),
}
"""What may go wrong, by where it does."""

SURE = ("env:dies", "env:tool-hangs", "env:dies-in-call", "verify")
"""Faults after which a rollout can't have a score."""

BUSY_STORM = 12
"""How many creates in a row one busy fault refuses."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        where: A key of :data:`KINDS`.
        kind: One of its values.
        nth: Which call of the rollout it strikes, from 0.
        times: How many calls in a row it strikes.
        seconds: How long something takes, or after how long a player acts.
    """

    where: str
    kind: str
    nth: int = 0
    times: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.where}:{self.kind}"


@dataclass(frozen=True)
class Plan:
    """One rollout.

    Attributes:
        number: Its number.
        after: Seconds after the beginning at which it starts.
        amount: What its player adds to the counter, whose goal is 3: the score is a third of it.
        faults: What goes wrong in it.
    """

    number: int
    after: float
    amount: int
    faults: tuple[Fault, ...] = ()

    @property
    def score(self) -> float:
        """What a score must be, if there is one."""
        return self.amount / 3

    def has(self, *faults: str) -> bool:
        """Whether one of these goes wrong in it."""
        return any(str(fault) in faults or fault.where in faults for fault in self.faults)


@dataclass(frozen=True)
class Schedule:
    """A run.

    Attributes:
        seed: What it was made from.
        plans: Its rollouts.
        closes: Seconds after which the host is closed in the middle of everything; None lets all come to their end.
    """

    seed: int
    plans: tuple[Plan, ...]
    closes: float | None = None

    def save(self, file: Path) -> None:
        """Writes it as JSON."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Schedule:
        """Reads what :meth:`save` wrote.

        Raises:
            ValueError: It holds something else.
        """
        try:
            data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            plans = [
                Plan(**{**plan, "faults": tuple(Fault(**fault) for fault in plan["faults"])}) for plan in data["plans"]
            ]
            return cls(data["seed"], tuple(plans), data["closes"])
        except (ValueError, KeyError, TypeError) as exc:
            raise ValueError(f"{file} holds no schedule that make chaos has kept: {type(exc).__name__}: {exc}") from exc


def make(seed: int, rollouts: int, *, rate: float = 0.35, spread: float = 1.0, closes: float | None = None) -> Schedule:
    """A schedule.

    Args:
        seed: Equal seeds make equal schedules.
        rollouts: How many.
        rate: What part of them has faults.
        spread: Seconds over which they begin.
        closes: See :class:`Schedule`.
    """
    dice = random.Random(seed)  # noqa: S311 - it must be repeatable
    plans = []
    for number in range(rollouts):
        faults = [_fault(dice) for _ in range(dice.choice((1, 1, 1, 2)))] if dice.random() < rate else []
        plans.append(Plan(number, round(dice.uniform(0, spread), 3), dice.randint(0, 3), tuple(faults)))
    return Schedule(seed, tuple(plans), closes)


def _fault(dice: random.Random) -> Fault:
    where = dice.choice(tuple(KINDS))
    kind = dice.choice(KINDS[where])
    times = dice.randint(1, BUSY_STORM) if kind == "busy" else dice.randint(1, 3) if where == "kill" else 1
    return Fault(where, kind, nth=0 if where != "endpoint" else dice.randint(0, 1), times=times,
                 seconds=round(dice.uniform(0, 0.5), 3))  # fmt: skip


async def shrink(schedule: Schedule, fails: Callable[[Schedule], Awaitable[bool]], *, tries: int = 60) -> Schedule:
    """A smaller schedule that fails as well: halves of the rollouts are left out, then ever smaller parts.

    Args:
        schedule: One that fails.
        fails: Whether a schedule fails.
        tries: How many are tried at most.
    """
    part = max(1, len(schedule.plans) // 2)
    while tries > 0 and len(schedule.plans) > 1:
        plans, smaller = schedule.plans, None
        for at in range(0, len(plans), part):
            kept = plans[:at] + plans[at + part :]
            tries -= 1
            if kept and await fails(replace(schedule, plans=kept)):
                smaller = replace(schedule, plans=kept)
                break
            if tries <= 0:
                break
        if smaller is not None:
            schedule, part = smaller, max(1, min(part, len(smaller.plans) // 2))
        elif part == 1:
            break
        else:
            part //= 2
    return schedule

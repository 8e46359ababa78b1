"""The virtual clock of a deployed env: a time of its own that runs at a rate of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

FASTEST = 86_400.0
"""Virtual seconds in a real one at most: a day a second."""


@dataclass
class VirtualClock:
    """A clock that was set to a time and runs from there.

    Attributes:
        start: The time it was set to.
        rate: Virtual seconds in a real one; 0 holds it still.
    """

    start: datetime
    rate: float = 1.0
    _clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _since: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._since = self._clock()

    def now(self) -> datetime:
        """The virtual time; it stops at the last one that can be written."""
        try:
            return self.start + timedelta(seconds=(self._clock() - self._since) * self.rate)
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)


def read_time(text: str) -> datetime:
    """A time as RFC 3339 writes it, in UTC.

    Raises:
        ValueError: It is none, or says nothing of its zone.
    """
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is no time of RFC 3339, such as 2026-03-01T09:00:00Z")


def write_time(moment: datetime) -> str:
    """A time as RFC 3339 writes it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

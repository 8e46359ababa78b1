"""When the clock that leases are written in is no longer to be trusted for a moment.

A lease says when it ends in epoch seconds, since others read it who started later and elsewhere. That clock is set, and
it goes on while a machine sleeps; the monotonic one isn't, and doesn't. Where the two have moved apart, leases that are
alive may look long over: whoever keeps them renews them at once, and whoever ends them looks again later.
"""

from __future__ import annotations

import time

JUMP = 10.0
"""Seconds that the clocks may move apart unnoticed: more than a network's time service shifts them by in hours, and
well below the grace that a lease has."""


class Jumps:
    """Sees the clock of leases jump."""

    def __init__(self) -> None:
        self._apart = _apart()

    def seen(self) -> bool:
        """Whether it has jumped, in either direction, since this was last true or the beginning."""
        now = _apart()
        if abs(now - self._apart) <= JUMP:
            return False
        self._apart = now
        return True


def _apart() -> float:
    return time.time() - time.monotonic()

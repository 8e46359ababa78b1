"""How many sandboxes may be starting, and how many may run, at once.

Starting is what costs CPU; running mostly costs memory. So they are two limits. Both are kept inside one process for
now; what needs them sees only :class:`Limits`, so that a host-wide keeper can take its place.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager


def default_starting() -> int:
    """Twice the cores this process may use, and at least 2: starting mixes CPU with waiting."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, 2 * usable)


class Limits:
    """Two counters that callers wait for, first come, first served.

    Args:
        max_starting: Sandboxes that may be starting at once; by default :func:`default_starting`.
        max_running: Sandboxes that may exist at once; None sets no limit.
    """

    def __init__(self, max_starting: int | None = None, max_running: int | None = None) -> None:
        for name, value in (("max_starting", max_starting), ("max_running", max_running)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1; leave it out for the default")
        self.max_starting = default_starting() if max_starting is None else max_starting
        self.max_running = max_running
        self._starting = asyncio.Semaphore(self.max_starting)
        self._running = None if max_running is None else asyncio.Semaphore(max_running)

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Holds one of the starting places for as long as the context is open."""
        return self._starting

    async def take_running(self) -> None:
        """Waits for a running place; :meth:`free_running` gives it back."""
        if self._running is not None:
            await self._running.acquire()

    def free_running(self) -> None:
        """Gives one running place back."""
        if self._running is not None:
            self._running.release()

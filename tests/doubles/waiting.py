"""How tests wait for what nothing tells of: they look again and again, for longer than a busy machine takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import psutil

SECONDS = 60.0


def _pauses(seconds: float) -> Iterator[float]:
    """Pauses between looks, short at first; fails the test once ``seconds`` have passed."""
    ends, pause = time.monotonic() + seconds, 0.002
    while True:
        yield pause
        assert time.monotonic() < ends, f"what the test waits for didn't come within {seconds:g} s"
        pause = min(1.5 * pause, 0.05)


def until(holds: Callable[[], object], seconds: float = SECONDS) -> None:
    """Returns as soon as something holds."""
    pauses = _pauses(seconds)
    while not holds():
        time.sleep(next(pauses))


async def eventually(holds: Callable[[], object], seconds: float = SECONDS) -> None:
    """Returns as soon as something holds; the event loop goes on meanwhile."""
    pauses = _pauses(seconds)
    while not holds():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(next(pauses))


def ended(process: psutil.Process | int) -> bool:
    """Whether a process, or the one of a number, has ended; it may do so just now."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return not found.is_running() or found.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

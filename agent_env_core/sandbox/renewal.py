"""Renews leases while somebody still needs the sandboxes."""

from __future__ import annotations

import asyncio
import logging
import time

from agent_env_core.errors import Gone, Unsupported, describe
from agent_env_core.sandbox.clocks import Jumps
from agent_env_core.sandbox.contract import Sandbox

log = logging.getLogger(__name__)

RENEW_AT, AGAIN_AT = 1 / 3, 1 / 12
"""The shares of its time after which a lease is renewed, and tried again where that failed: several tries fit in."""

EXTEND_TIMEOUT = 30.0
"""Seconds one renewal may take."""

LOOK = 10.0
"""Seconds after which a jump of the clock is seen at the latest; a reaper that sees it too waits for longer."""


class Renewals:
    """Keeps the leases of one host, each by itself: one that hangs delays no other."""

    def __init__(self) -> None:
        self._keeping: dict[str, asyncio.Task[None]] = {}

    def keep(self, sandbox: Sandbox, ttl: float) -> None:
        """Renews the lease of ``sandbox`` to ``ttl`` seconds again and again, until :meth:`stop` or its end."""
        self.stop(sandbox.id)
        self._keeping[sandbox.id] = asyncio.create_task(self._keep(sandbox, ttl), name=f"lease of {sandbox.id}")

    def stop(self, sandbox_id: str) -> None:
        """Lets a lease run out. Idempotent."""
        task = self._keeping.pop(sandbox_id, None)
        if task is not None:
            task.cancel()

    async def aclose(self) -> None:
        """Lets all of them run out."""
        tasks = list(self._keeping.values())
        self._keeping.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, sandbox: Sandbox, ttl: float) -> None:
        pause, jumps = ttl * RENEW_AT, Jumps()
        while True:
            await _sleep(pause, jumps)
            pause = ttl * RENEW_AT
            try:
                async with asyncio.timeout(EXTEND_TIMEOUT):
                    await sandbox.extend(ttl)
            except (Gone, Unsupported) as exc:  # for good
                log.debug("the lease of %s isn't renewed any more: %s", sandbox.id, describe(exc))
                return
            except Exception as exc:  # whatever a provider raises: the next try may do
                pause = ttl * AGAIN_AT
                log.debug("the lease of %s can't be renewed now: %s", sandbox.id, describe(exc))


async def _sleep(seconds: float, jumps: Jumps) -> None:
    """Sleeps; not beyond a jump of the clock that leases are written in."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0 and not jumps.seen():  # noqa: ASYNC110 - no event tells of a jump
        await asyncio.sleep(min(left, LOOK))

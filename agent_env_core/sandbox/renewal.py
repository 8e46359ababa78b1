"""Renews leases while somebody still needs the sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import logging

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
    """Keeps the leases of one host, each by itself, so that one that hangs delays no other; one watch wakes all."""

    def __init__(self) -> None:
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._jumped = asyncio.Event()  # at the next jump; each has one of its own

    def keep(self, sandbox: Sandbox, ttl: float) -> None:
        """Renews the lease of ``sandbox`` to ``ttl`` seconds again and again, until :meth:`stop` or its end."""
        self.stop(sandbox.id)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="clock of leases")
        self._keeping[sandbox.id] = asyncio.create_task(self._keep(sandbox, ttl), name=f"lease of {sandbox.id}")

    def stop(self, sandbox_id: str) -> None:
        """Lets a lease run out. Idempotent. The watch ends with the last of them."""
        task = self._keeping.pop(sandbox_id, None)
        if task is not None:
            task.cancel()
        if not self._keeping and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def aclose(self) -> None:
        """Lets all of them run out."""
        tasks = [*self._keeping.values(), *([self._watching] if self._watching is not None else [])]
        self._keeping.clear()
        self._watching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        jumps = Jumps()
        while True:
            await asyncio.sleep(LOOK)
            if jumps.seen():
                self._jumped.set()
                self._jumped = asyncio.Event()

    async def _keep(self, sandbox: Sandbox, ttl: float) -> None:
        pause, jumped = ttl * RENEW_AT, self._jumped
        while True:
            await _sleep(pause, jumped)
            pause, jumped = ttl * RENEW_AT, self._jumped  # a jump while it is renewed counts
            try:
                async with asyncio.timeout(EXTEND_TIMEOUT):
                    await sandbox.extend(ttl)
            except (Gone, Unsupported) as exc:  # for good
                log.debug("the lease of %s isn't renewed any more: %s", sandbox.id, describe(exc))
                return
            except Exception as exc:  # whatever a provider raises: the next try may do
                pause = ttl * AGAIN_AT
                log.debug("the lease of %s can't be renewed now: %s", sandbox.id, describe(exc))


async def _sleep(seconds: float, jumped: asyncio.Event) -> None:
    """Sleeps; not beyond a jump of the clock that leases are written in."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await jumped.wait()

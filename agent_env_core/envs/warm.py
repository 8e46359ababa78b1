"""Deployments made before anybody asks for one.

A deploy costs the better part of a second of CPU, most of it an env's imports. Nothing of that depends on the episode,
so it can be done ahead, while the model generates, and so can the opening of the first MCP session. What is kept here
is fresh: nobody has called its tools or extensions, it serves one episode, and it isn't taken back. An episode can't
tell it from one that was deployed for it, but for the waiting.

It gives way to everything: nothing is made while an episode waits for a deploy, where memory or room is short, or of an
env that nobody asked for lately. What isn't used for half an hour is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httpx

from agent_env_core.envs.deployment import Deployment, DeployOptions
from agent_env_core.errors import describe
from agent_env_core.sandbox.machine import memory

if TYPE_CHECKING:
    from agent_env_core.bundle import Env
    from agent_env_core.sandbox.host import SandboxHost
    from agent_env_core.sandbox.limits import Place

log = logging.getLogger(__name__)

Key = tuple[str, DeployOptions]
"""What must be the same: the env, and all that is asked of its sandbox."""

KEEP_SECONDS = 1800.0
"""How long one is kept for somebody to ask for it."""
TICK_SECONDS = 0.25
"""How often room, memory and ages are looked at while there is something to do about them. It's also how long somebody
in another process may wait for room that is taken here."""
CALM_SECONDS, LONGEST_WAIT = 1.0, 5.0
"""None are begun until nobody has asked for so long: what was just handed out is being set up and called, on the same
cores. Where somebody always asks, they are begun after the longer time all the same."""
ANSWER_SECONDS = 2.0
"""How long one that is handed out may take to show that it lives."""
SHORT_REST = 30.0
"""Seconds in which none is begun after room to run or memory was short: somebody would soon wait for it again."""
FIRST_REST, LAST_REST = 30.0, 600.0
"""Seconds in which no more of an env is made after one of it failed; doubled each time."""
MIB = 1 << 20
USUAL_MEMORY = 256 * MIB
"""What one is taken to need where its task doesn't say."""
MEMORY_SHARE = 0.25
"""The share of the machine's free memory that those kept by default may take."""
MEMORY_FLOOR = 0.1
"""The share of the machine's memory that stays free."""


def default_warm(sessions: int) -> int:
    """How many to keep on this machine where nobody says.

    As many as there are sessions, at most four for each core (to be remade within a few seconds), and no more than a
    quarter of the free memory holds.

    Args:
        sessions: How many episodes are played at once.
    """
    known = memory()
    fits = int(MEMORY_SHARE * known.free / USUAL_MEMORY) if known is not None else sessions
    return max(0, min(sessions, 4 * (os.cpu_count() or 1), fits))


@dataclass(eq=False)
class _Kept:
    """One that is ready, or will be.

    Attributes:
        key: What it is.
        made: Its deploy.
        ends: When its time to live is over, in epoch seconds.
        until: When nobody waits for a taker any more, on the monotonic clock.
    """

    key: Key
    made: asyncio.Future[Deployment]
    ends: float
    until: float

    @property
    def ready(self) -> bool:
        return self.made.done()


class WarmPool:
    """Keeps fresh deployments of what was asked for lately.

    Args:
        host: Makes and ends their sandboxes.
        fresh: Deploys one; its last argument is the room it takes.
        size: How many there may be, those under way included.
        clock: The monotonic clock.
    """

    def __init__(
        self,
        host: SandboxHost,
        fresh: Callable[[Env, DeployOptions, Place], Awaitable[Deployment]],
        size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._fresh, self._size, self._now = host, fresh, size, clock
        self._kept: list[_Kept] = []
        self._envs: dict[str, Env] = {}
        self._asked: deque[Key] = deque(maxlen=max(64, 4 * size))
        self._rests: dict[Key, tuple[float, float]] = {}  # until when none is made, and how long the next rest is
        self._cold = 0
        self._roomy = float("-inf")  # when room that was short may be taken again
        self._calm = 0.0  # when nobody has asked for long enough
        self._latest: float | None = None  # when that no longer matters; None while nothing is missing
        self._ending: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many sandboxes stand here for nobody, those coming and going included."""
        return len(self._kept) + len(self._ending)

    # -- for the deployer

    async def take(self, env: Env, options: DeployOptions) -> Deployment | None:
        """A deployment that is alive and has as much time left as is asked, now the caller's; None where there is none.

        One that is under way is waited for: it's ahead of any that could be begun now.
        """
        if self._closed or not self._size:
            return None
        key = env.id, options
        self._envs[env.id] = env
        self._asked.append(key)
        now = self._now()
        if self._latest is None:
            self._latest = now + LONGEST_WAIT
        self._calm = now + CALM_SECONDS
        self._tend()
        while (kept := self._pop(key)) is not None:
            fits = False
            try:
                deployment = await asyncio.shield(kept.made)
                if fits := await self._fits(kept, deployment):
                    return deployment
            except Exception as exc:  # it failed to come up; that was told then
                log.debug("no deployment of %r in stock: %s", env.name, describe(exc))
            finally:
                if not fits:
                    self._end(kept)
                self._news.set()
        return None

    @contextlib.contextmanager
    def cold(self) -> Iterator[None]:
        """While an episode waits for a deploy of its own, none is begun here."""
        self._cold += 1
        try:
            yield
        finally:
            self._cold -= 1
            self._news.set()

    async def aclose(self) -> None:
        """Ends all of them, and makes no more. Idempotent."""
        self._closed = True
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.gather(self._tending, return_exceptions=True)
        for kept in list(self._kept):
            self._end(kept)
        await asyncio.gather(*self._ending, return_exceptions=True)

    # -- handing out

    def _pop(self, key: Key) -> _Kept | None:
        same = [kept for kept in self._kept if kept.key == key]
        found = next((kept for kept in same if kept.ready), same[0] if same else None)
        if found is not None:
            self._kept.remove(found)
        return found

    async def _fits(self, kept: _Kept, deployment: Deployment) -> bool:
        """Whether it lives, and lives as long as is asked."""
        _, options = kept.key
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                alive = await deployment.answers()
                if kept.ends - time.time() < options.ttl:
                    await deployment.sandbox.extend(options.ttl)
        except (httpx.HTTPError, TimeoutError) as exc:
            log.info("a deployment of %r in stock died and is replaced: %s", deployment.env.name, describe(exc))
            return False
        except Exception as exc:  # a provider that can't extend, or not now
            log.debug("a deployment of %r in stock can't be used: %s", deployment.env.name, describe(exc))
            return False
        return alive

    # -- keeping

    def _tend(self) -> None:
        if self._tending is None or self._tending.done():
            self._tending = asyncio.create_task(self._keep(), name="warm deployments")
        self._news.set()

    async def _keep(self) -> None:
        """Ends what is too many and makes what is missing, at each piece of news, and now and then."""
        while True:
            self._news.clear()
            try:
                self._retire()
                self._fill()
            except Exception as exc:  # files that can't be opened now, say; the next look may do
                log.debug("no deployments are made ahead for now: %s", describe(exc))
            wait = self._wait
            tick = wait if wait > 0 else TICK_SECONDS if self._asked else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(tick):
                    await self._news.wait()

    def _retire(self) -> None:
        now, targets, have = self._now(), self._targets(), Counter(kept.key for kept in self._kept)
        if short := self._host.crowded or self._short_of_memory(0):
            self._roomy = now + SHORT_REST
        for kept in list(self._kept):
            unused = now >= kept.until
            if unused:
                self._asked = deque((key for key in self._asked if key != kept.key), self._asked.maxlen)
            elif not short and have[kept.key] <= targets[kept.key]:
                continue
            have[kept.key] -= 1
            self._kept.remove(kept)
            self._end(kept)

    @property
    def _wait(self) -> float:
        """Seconds until it is calm enough to begin one."""
        return (self._calm if self._latest is None else min(self._calm, self._latest)) - self._now()

    def _fill(self) -> None:
        if len(self._kept) >= self._size:
            self._latest = None
        coming = sum(not kept.ready for kept in self._kept)
        for key, wanted in self._targets().items():
            missing = wanted - sum(kept.key == key for kept in self._kept)
            while missing > 0 and coming < self._at_once and not self._must_wait(key, coming):
                if (place := self._host.spare_place()) is None:
                    return
                self._begin(key, place)
                missing, coming = missing - 1, coming + 1

    @property
    def _at_once(self) -> int:
        """Half of what may start at once, so that an episode's own deploy finds a place."""
        return max(1, self._host.max_starting // 2)

    def _must_wait(self, key: Key, coming: int) -> bool:
        rest, _ = self._rests.get(key, (0.0, 0.0))
        return (
            self._cold > 0
            or self._wait > 0
            or len(self) >= self._size
            or self._now() < max(rest, self._roomy)
            or self._host.crowded
            or self._short_of_memory((coming + 1) * ((key[1].memory_mb or 0) * MIB or USUAL_MEMORY))
        )

    def _short_of_memory(self, needed: int) -> bool:
        known = None if self._host.provider.capabilities.remote else memory()
        return known is not None and known.free - needed < MEMORY_FLOOR * known.total

    def _targets(self) -> Counter[Key]:
        """How many of each there should be: the size, shared out as they were asked for lately."""
        asked, targets = Counter(self._asked), Counter[Key]()
        for key, times in asked.items():
            targets[key] = int(self._size * times / asked.total())
        for key, _ in asked.most_common(self._size - targets.total()):
            targets[key] += 1
        return targets

    def _begin(self, key: Key, place: Place) -> None:
        env_id, options = key
        can, keep = self._host.provider.capabilities, KEEP_SECONDS
        ttl = options.ttl + keep
        if can.max_ttl is not None and ttl > can.max_ttl:
            ttl = can.max_ttl
            keep = ttl / 2 if can.extend else ttl - options.ttl
        if keep <= 0:  # it would have less time left than is asked as soon as it is there
            self._rests[key] = float("inf"), 0.0
            place.leave()
            return
        made = asyncio.ensure_future(self._fresh(self._envs[env_id], replace(options, ttl=ttl), place))
        self._kept.append(_Kept(key, made, time.time() + ttl, self._now() + keep))
        made.add_done_callback(lambda _: self._made(key, made, place))

    def _made(self, key: Key, made: asyncio.Future[Deployment], place: Place) -> None:
        place.leave()
        self._news.set()
        if not made.cancelled() and (exc := made.exception()) is None:
            self._rests.pop(key, None)
            return
        self._kept = [kept for kept in self._kept if kept.made is not made]
        if not made.cancelled():
            _, pause = self._rests.get(key, (0.0, FIRST_REST))
            self._rests[key] = self._now() + pause, min(2 * pause, LAST_REST)
            name = self._envs[key[0]].name
            log.info("no deployment of %r could be made ahead, again in %.0f s: %s", name, pause, exc)

    # -- ending

    def _end(self, kept: _Kept) -> None:
        """Ends one that is no longer kept, behind."""
        if kept in self._kept:
            self._kept.remove(kept)

        async def end() -> None:
            kept.made.cancel()
            await asyncio.wait({kept.made})
            if kept.made.cancelled() or kept.made.exception() is not None:
                return  # a deploy that fails leaves nothing
            deployment = kept.made.result()
            try:
                await self._host.destroy(deployment.sandbox.id)
            except Exception as exc:  # trying goes on, in the host
                log.warning("%s", describe(exc))
            await deployment.close()

        task = asyncio.create_task(end(), name="end a warm deployment")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.add_done_callback(lambda _: self._news.set())

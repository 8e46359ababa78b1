"""A provider that goes wrong on schedule, over any other one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from agent_env_core.errors import Busy, ImageError, Unavailable
from agent_env_core.sandbox.contract import (
    Capabilities,
    Endpoint,
    Image,
    Sandbox,
    SandboxInfo,
    SandboxProvider,
    SandboxSpec,
)
from chaos.schedule import Fault, Plan

T = TypeVar("T")

PLAYING: ContextVar[Playing] = ContextVar("PLAYING")
"""The rollout on whose behalf the code at hand runs; tasks inherit it from those that start them."""


class Playing:
    """A rollout's plan, and how far its calls have come.

    Attributes:
        plan: The plan.
        boxes: The sandboxes that were made for it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.boxes: list[str] = []
        self._calls: Counter[str] = Counter()

    def strikes(self, where: str) -> Fault | None:
        """Counts a call, and says what goes wrong with it."""
        at = self._calls[where]
        self._calls[where] += 1
        for fault in self.plan.faults:
            if fault.where == where and fault.nth <= at < fault.nth + fault.times:
                return fault
        return None


async def _troubled(where: str, work: Callable[[], Awaitable[T]], dies: Callable[[], Awaitable[Any]]) -> T:
    """Does ``work``, or what the schedule says instead."""
    playing = PLAYING.get(None)
    fault = None if playing is None else playing.strikes(where)
    text = f"the schedule: {fault}"
    match fault.kind if fault is not None else "":
        case "unavailable":
            raise Unavailable(text)
        case "busy":
            raise Busy(text, retry_after=0.01)
        case "image":
            raise ImageError(text)
        case "bug":
            raise RuntimeError(text)
        case "hang":
            await asyncio.get_running_loop().create_future()
        case "slow":
            await asyncio.sleep(fault.seconds if fault else 0)
        case "dies":
            await dies()
        case "lost":
            await work()
            raise Unavailable(text)
    return await work()


class TroubledProvider:
    """Wraps ``inner``; counts what the judge wants to know.

    Attributes:
        inner: Who does the work.
        created: How many sandboxes were made.
        starting: How many are being made now.
        most_starting: The most that ever were.
        running: Ids of those that exist.
        most_running: The most that ever did.
    """

    def __init__(self, inner: SandboxProvider) -> None:
        self.inner = inner
        self.created = self.starting = self.most_starting = self.most_running = 0
        self.running: set[str] = set()

    @property
    def name(self) -> str:
        """That of the inner one."""
        return self.inner.name

    @property
    def capabilities(self) -> Capabilities:
        """Those of the inner one."""
        return self.inner.capabilities

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # optional powers

    async def prepare(self, image: Image) -> str:
        """Prepares an image."""
        return await self.inner.prepare(image)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Creates a sandbox, or fails to."""

        async def work() -> Sandbox:
            box = await self.inner.create(spec)
            self.created += 1
            self.running.add(box.id)
            self.most_running = max(self.most_running, len(self.running))
            if (playing := PLAYING.get(None)) is not None:
                playing.boxes.append(box.id)
            return TroubledSandbox(self, box)

        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            return await _troubled("create", work, _nothing)
        finally:
            self.starting -= 1

    async def attach(self, id: str) -> Sandbox:
        """A handle on a sandbox."""
        return TroubledSandbox(self, await self.inner.attach(id))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """The sandboxes with these labels."""
        async for info in self.inner.list(labels):
            yield info

    async def kill(self, id: str) -> bool:
        """Ends a sandbox, or fails to."""

        async def work() -> bool:
            was = await self.inner.kill(id)
            self.running.discard(id)
            return was

        return await _troubled("kill", work, _nothing)

    async def aclose(self) -> None:
        """Leaves the inner one open: it's asked afterwards what is left."""


class TroubledSandbox:
    """A sandbox whose endpoint may fail; all else is the inner one's."""

    def __init__(self, provider: TroubledProvider, inner: Sandbox) -> None:
        self._provider, self._inner = provider, inner

    @property
    def id(self) -> str:
        """Its id."""
        return self._inner.id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def endpoint(self, port: int) -> Endpoint:
        """Where a port is reached, unless the schedule has it otherwise."""
        kill = self._provider.inner.kill
        return await _troubled("endpoint", lambda: self._inner.endpoint(port), lambda: kill(self.id))


async def _nothing() -> None:
    return None

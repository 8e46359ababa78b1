"""Sessions over real sockets: an OpenEnv server on the fake provider, and clients that misbehave on schedule."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import uvicorn

from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.server.app import app_of, service_for
from agent_env_core.server.service import Service
from agent_env_core.testing.fake import FakeProvider
from chaos.envs import COUNTER, Counter
from chaos.wire import Wire, wire

KINDS = ("plain", "plain", "plain", "hangs", "cut-in-reset", "cut-in-call", "abandoned")
"""What a session does: plays to its score, calls a tool that hangs, is cut off, or is abandoned over HTTP while it
deploys."""

PATIENCE = 300.0
"""Seconds a client waits for an answer."""


@dataclass
class Served:
    """What came of a number of sessions.

    Attributes:
        problems: Every broken promise, in words.
        latencies: Seconds of each tool call of the sessions that nothing happens to.
        scored: How many had the right reward.
    """

    problems: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    scored: int = 0

    def quantile(self, part: float) -> float:
        """The latency that ``part`` of the calls stay below, in seconds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


@contextlib.asynccontextmanager
async def serving(fake: FakeProvider, sessions: int) -> AsyncIterator[tuple[str, Service]]:
    """A server of the counter bundle on ``fake``, in threads of its own; its URL and its parts."""
    host = SandboxHost(fake, max_starting=16, max_running=sessions + 4)
    service = service_for(COUNTER, sandbox=host, max_concurrent_envs=sessions, on_progress=lambda line: None)
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready.set()

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        config = uvicorn.Config(app_of(service), log_config=None, lifespan="on", timeout_graceful_shutdown=5)
        server = Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            await asyncio.to_thread(ready.wait, 60)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", service
        finally:
            server.should_exit = True
            await asyncio.to_thread(thread.join, 60)


async def run(seed: int, sessions: int, *, calls: int = 3, kinds: tuple[str, ...] = KINDS) -> Served:
    """Opens so many sessions at once, and judges what comes of them.

    Args:
        seed: Decides which session does what, and when.
        sessions: How many.
        calls: Tool calls of a session that plays to its end.
        kinds: What sessions do; see :data:`KINDS`.
    """
    dice = random.Random(seed)  # noqa: S311 - it must be repeatable
    fake, served = FakeProvider(app=Counter, start_time=0.02), Served()
    async with serving(fake, sessions) as (url, service):
        chosen = [(dice.choice(kinds), dice.uniform(0, 0.3)) for _ in range(sessions)]
        work = (_session(url, kind, after, calls, fake, served, n) for n, (kind, after) in enumerate(chosen))
        for (kind, _), outcome in zip(chosen, await asyncio.gather(*work, return_exceptions=True), strict=True):
            if isinstance(outcome, BaseException):
                served.problems.append(f"{kind}: {type(outcome).__name__}: {outcome}")
        ends = time.monotonic() + 30
        while (service.engine.live or service.sessions.all()) and time.monotonic() < ends:  # noqa: ASYNC110 - polled
            await asyncio.sleep(0.05)
        if service.engine.live:
            served.problems.append(f"I1: {service.engine.live} sandboxes are counted, and no session is left")
        if service.sessions.all():
            served.problems.append(f"I1: {len(service.sessions.all())} sessions are still counted")
    if fake.sandboxes:  # deployments made ahead are emptied on shutdown
        served.problems.append(f"I1: {len(fake.sandboxes)} sandboxes exist, and the server is closed")
    return served


async def _session(
    url: str, kind: str, after: float, calls: int, fake: FakeProvider, served: Served, number: int
) -> None:
    await asyncio.sleep(after)
    async with wire(url, PATIENCE, ping_interval=None) as session:
        key = f"session-{number}"
        await session.send_reset(session=key, episode_id=key, tool_timeout=0.5 if kind == "hangs" else PATIENCE)
        if kind == "cut-in-reset":
            session.cut()
            return
        if kind == "abandoned":
            async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
                await client.post(f"{url}/agent-env/v1/sessions/{key}/abandon", json={"reason": "the schedule"})
        first = await session.answer()
        if kind == "abandoned":
            return  # it may have been ready before: then it goes on, and ends with its socket
        _must(first["done"] is False, f"{kind}: its reset failed: {first}")
        for _ in range(calls - 1):
            await _timed(session, kind, served, 1)
        if kind == "cut-in-call":
            await session.send_call("hang")
            await asyncio.sleep(after)
            session.cut()
        elif kind == "hangs":
            last = await session.call("hang")
            _must(last["done"] and last["reward"] is None, f"{kind}: a missed deadline must end it unscored: {last}")
        else:
            await _timed(session, kind, served, 3 - (calls - 1))
            ended = await session.call("end_turn")
            _must(ended["done"] and ended["reward"] == 1.0, f"{kind}: it must be scored 1.0: {ended}")
            served.scored += 1


async def _timed(session: Wire, kind: str, served: Served, amount: int) -> None:
    began = time.monotonic()
    await session.call("add", amount=amount)
    if kind == "plain":
        served.latencies.append(time.monotonic() - began)


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)

"""Sessions over real sockets: an OpenEnv server on the fake provider, and clients that misbehave on schedule."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from websockets.asyncio.client import ClientConnection, connect

from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.server.app import app_of, service_for
from agent_env_core.server.service import Service
from agent_env_core.testing.fake import FakeProvider
from chaos.envs import COUNTER, Counter

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
    """A server of the counter bundle on ``fake``, in threads of its own; its address and its parts."""
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
            yield f"127.0.0.1:{listener.getsockname()[1]}", service
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
    async with serving(fake, sessions) as (address, service):
        chosen = [(dice.choice(kinds), dice.uniform(0, 0.3)) for _ in range(sessions)]
        work = (_session(address, kind, after, calls, fake, served, n) for n, (kind, after) in enumerate(chosen))
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
    address: str, kind: str, after: float, calls: int, fake: FakeProvider, served: Served, number: int
) -> None:
    await asyncio.sleep(after)
    async with connect(f"ws://{address}/ws", proxy=None, open_timeout=PATIENCE, ping_interval=None) as wire:
        key = f"session-{number}"
        reset: dict[str, Any] = {"split": "train", "index": 0, "session": key, "episode_id": key}
        reset["tool_timeout"] = 0.5 if kind == "hangs" else PATIENCE
        await _send(wire, "reset", reset)
        if kind == "cut-in-reset":
            wire.transport.abort()
            return
        if kind == "abandoned":
            url = f"http://{address}/agent-env/v1/sessions/{key}/abandon"
            async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
                await client.post(url, json={"reason": "the schedule"})
        first = await _answer(wire)
        if kind == "abandoned":
            return  # it may have been ready before: then it goes on, and ends with its socket
        _must(first["done"] is False, f"{kind}: its reset failed: {first}")
        for _ in range(calls - 1):
            await _call(wire, kind, served, "add", amount=1)
        if kind == "cut-in-call":
            await _send(wire, "step", {"type": "call_tool", "tool_name": "hang", "arguments": {}})
            await asyncio.sleep(after)
            wire.transport.abort()
        elif kind == "hangs":
            last = await _call(wire, kind, served, "hang")
            _must(last["done"] and last["reward"] is None, f"{kind}: a missed deadline must end it unscored: {last}")
        else:
            await _call(wire, kind, served, "add", amount=3 - (calls - 1))
            ended = await _call(wire, "", served, "end_turn")
            _must(ended["done"] and ended["reward"] == 1.0, f"{kind}: it must be scored 1.0: {ended}")
            served.scored += 1


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


async def _send(wire: ClientConnection, kind: str, data: dict[str, Any]) -> None:
    await wire.send(json.dumps({"type": kind, "data": data}))


async def _answer(wire: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        data: dict[str, Any] = json.loads(await wire.recv())["data"]
    return data


async def _call(wire: ClientConnection, kind: str, served: Served, tool: str, **arguments: int) -> dict[str, Any]:
    began = time.monotonic()
    await _send(wire, "step", {"type": "call_tool", "tool_name": tool, "arguments": arguments})
    answer = await _answer(wire)
    if kind == "plain":
        served.latencies.append(time.monotonic() - began)
    return answer

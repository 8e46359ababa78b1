"""MCP over real connections: how many a session takes, and when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from agent_env_core.envs import mcp
from agent_env_core.envs.http import HttpClients
from agent_env_core.envs.mcp import McpSession
from agent_env_core.testing.asgi import Served


class EventServer:
    """An MCP server that answers by streams of events.

    Attributes:
        peers: The addresses it was asked from, one for each connection.
        stay: What it waits for behind an answer, before it ends the stream.
    """

    def __init__(self) -> None:
        self.peers: set[Any] = set()
        self.stay: Callable[[], Awaitable[Any]] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.peers.add(tuple(scope["client"]))
        body = (await receive())["body"]
        message = json.loads(body) if body else {}
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        result = {"protocolVersion": "2025-06-18", "tools": []}
        answer = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode()
        await send({"type": "http.response.body", "body": b"data: " + answer + b"\n\n", "more_body": True})
        if self.stay is not None and "id" in message:
            await self.stay()
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with HttpClients().open() as made:
        yield made


@contextlib.asynccontextmanager
async def opened(server: EventServer, client: httpx.AsyncClient) -> AsyncIterator[McpSession]:
    """A session with a served server."""
    served = await Served.start(server)
    try:
        session = McpSession(client, served.url, {})
        await session.open()
        yield session
    finally:
        await served.close()


async def test_a_session_takes_one_connection_where_answers_are_streams(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "END_AFTER", 60.0)
    server = EventServer()
    async with opened(server, client) as session:
        for _ in range(5):
            assert await session.call("add", {}) == {"protocolVersion": "2025-06-18", "tools": []}
    assert len(server.peers) == 1


async def test_a_server_that_keeps_its_streams_open_is_waited_for_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, never = EventServer(), asyncio.Event()
    server.stay = never.wait
    async with opened(server, client) as session:
        monkeypatch.setattr(mcp, "END_AFTER", 3600.0)
        async with asyncio.timeout(60):
            assert await session.call("add", {}) == {"protocolVersion": "2025-06-18", "tools": []}


async def test_what_ends_badly_behind_an_answer_is_no_failure(client: httpx.AsyncClient) -> None:
    server = EventServer()
    async with opened(server, client) as session:

        async def fail() -> None:
            raise RuntimeError("behind the answer")

        server.stay = fail
        assert await session.call("add", {}) == {"protocolVersion": "2025-06-18", "tools": []}

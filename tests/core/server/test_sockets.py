"""The watch over a session's socket, as the server under it behaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from agent_env_core.server.sockets import PATH, SocketWatch


async def test_an_answer_to_a_client_that_has_just_gone_is_no_error() -> None:
    """A socket refuses what is sent between its client's goodbye and the message that tells of it."""
    abandoned: list[str] = []
    refused = asyncio.Event()
    heard: list[str] = []

    async def openenv(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.send", "text": "an answer"})
        heard.append((await receive())["type"])

    async def receive() -> Any:
        await refused.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(message: Any) -> None:
        refused.set()
        raise OSError("connection is closing")

    sessions = SimpleNamespace(abandon=lambda key, reason: abandoned.append(reason))
    await SocketWatch(openenv, sessions)({"type": "websocket", "path": PATH}, receive, send)  # type: ignore[arg-type]
    assert heard == ["websocket.disconnect"]
    assert abandoned == ["its client went away"]

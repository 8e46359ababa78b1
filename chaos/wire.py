"""OpenEnv's WebSocket protocol, spoken by hand: one message at a time, cut off wherever a fault wants it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect


class Wire:
    """A session's socket.

    Args:
        socket: The open connection.
        patience: Seconds that any one answer may take.
    """

    def __init__(self, socket: ClientConnection, patience: float) -> None:
        self._socket, self._patience = socket, patience

    async def send_reset(self, **options: object) -> None:
        """Sends the reset to the bundle's first task, and waits for no answer.

        Args:
            options: What it says besides the task, such as ``tool_timeout``.
        """
        await self._send("reset", {"split": "train", "index": 0, **options})

    async def send_call(self, tool: str, **arguments: int) -> None:
        """Sends a tool call, and waits for no answer."""
        await self._send("step", {"type": "call_tool", "tool_name": tool, "arguments": arguments})

    async def answer(self) -> dict[str, Any]:
        """The next answer; a refusal reads as the end of an episode without a score.

        Raises:
            TimeoutError: None came in time.
        """
        async with asyncio.timeout(self._patience):
            answer = json.loads(await self._socket.recv())
        if answer["type"] == "error":
            return {"done": True, "reward": None, "observation": {"error": answer["data"]}}
        told: dict[str, Any] = answer["data"]
        return told

    async def call(self, tool: str, **arguments: int) -> dict[str, Any]:
        """Calls a tool, and waits for its result."""
        await self.send_call(tool, **arguments)
        return await self.answer()

    def cut(self) -> None:
        """Breaks the connection, with no word to the server."""
        self._socket.transport.abort()

    async def _send(self, kind: str, data: Mapping[str, Any]) -> None:
        await self._socket.send(json.dumps({"type": kind, "data": data}))


@contextlib.asynccontextmanager
async def wire(url: str, patience: float, ping_interval: float | None = 20.0) -> AsyncIterator[Wire]:
    """Opens a session on a server.

    Args:
        url: The server's, ``http://host:port``.
        patience: Seconds that the connection, and then any one answer, may take.
        ping_interval: Seconds between two questions whether the server lives; None for no such questions.
    """
    address = f"ws{url.removeprefix('http')}/ws"
    async with connect(address, proxy=None, open_timeout=patience, ping_interval=ping_interval) as socket:
        yield Wire(socket, patience)

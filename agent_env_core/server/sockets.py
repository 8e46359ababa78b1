"""Notices at once that a session's socket is gone, whatever the session is doing.

OpenEnv reads a socket only between two messages. So a client that goes away during a deploy or a tool call would be
noticed when that ends, and its episode would hold a session and a sandbox until then. Reading ahead also keeps the
server answering pings while a long call runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from agent_env_core.server.sessions import Sessions

PATH = "/ws"
AHEAD = 4
"""Messages that are read before OpenEnv asks for them. A client sends one and waits, so this is plenty."""


class SocketWatch:
    """ASGI middleware that reads a session's socket ahead, and abandons its episode when the socket ends.

    Args:
        app: OpenEnv's app.
        sessions: Where episodes are found by their sessions' keys.
    """

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a socket's messages on in order."""
        if scope["type"] != "websocket" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        watched = _Watched(receive, send, self._sessions)
        reader = asyncio.create_task(watched.read())
        try:
            await self._app(scope, watched.receive, watched.send)
        finally:
            reader.cancel()


class _Watched:
    """One socket."""

    def __init__(self, receive: Receive, send: Send, sessions: Sessions) -> None:
        self._receive = receive
        self._send = send
        self._sessions = sessions
        self._key = secrets.token_urlsafe(24)
        self._gone = False
        self._ahead: asyncio.Queue[Message] = asyncio.Queue(AHEAD)

    async def read(self) -> None:
        """Reads until the socket ends, then ends what the session was doing."""
        while not self._gone:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._gone = True
                self._sessions.abandon(self._key, "its client went away")
                while not self._ahead.empty():  # nobody waits for what was still to do
                    self._ahead.get_nowait()
            await self._ahead.put(self._named(message))

    def _named(self, message: Message) -> Message:
        """Gives a reset the session's key, unless the client has made one: it's how the episode is found."""
        text = message.get("text")
        if not text or '"reset"' not in text:
            return message
        try:
            asked = json.loads(text)
            if asked["type"] != "reset":
                return message
            data = asked.setdefault("data", {})
            if not isinstance(data.get("session"), str):
                data["session"] = self._key
            self._key = data["session"]
        except (ValueError, TypeError, KeyError, AttributeError):
            return message  # OpenEnv says what is wrong with it
        return {**message, "text": json.dumps(asked)}

    async def receive(self) -> Message:
        """The next message."""
        return await self._ahead.get()

    async def send(self, message: Message) -> None:
        """Sends, unless nobody is there any more."""
        if not self._gone:
            with contextlib.suppress(OSError):  # it has just gone, and `read` is about to be told
                await self._send(message)

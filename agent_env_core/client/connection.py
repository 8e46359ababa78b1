"""One WebSocket to a server: questions out, answers back in the same order.

OpenEnv's messages carry no request ids, so an answer belongs to the oldest question without one. A question that is
given up on would shift every later answer, so its connection is dropped with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, ProxyError

from agent_env_core.client.address import Address
from agent_env_core.errors import AgentEnvError, CapacityError, EpisodeError, Phase, describe

logger = logging.getLogger(__name__)
_wire = logging.getLogger(f"{__name__}.wire")
_wire.addFilter(lambda record: "Authorization" not in (record.args or ()))  # websockets logs every header at DEBUG

OPEN_SECONDS = 10.0
PING_SECONDS = 20.0
"""A ping each 20 s, and 20 s for its answer: a silent server is given up after 40 s."""
MAX_MESSAGE = 100 * 1024 * 1024
CAPACITY = "CAPACITY_REACHED"


held: Counter[str] = Counter()
"""Sockets that this process holds, by server. Touched on the client's loop alone."""
os.register_at_fork(after_in_child=held.clear)


class Full(CapacityError):
    """One server that takes no further session.

    Args:
        url: The server.
        limit: Sessions it allows.
    """

    def __init__(self, url: str, limit: object) -> None:
        super().__init__(f"the server at {url} is at its limit of {limit} sessions at once")
        self.url = url
        self.limit = limit


class Connection:
    """An open session's socket. Every method runs on one event loop."""

    def __init__(self, socket: ClientConnection, address: Address) -> None:
        self.lost: EpisodeError | None = None
        self._socket = socket
        self.address = address
        self._unanswered: deque[asyncio.Future[dict[str, Any]]] = deque()
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether the server has questions of ours to answer."""
        return bool(self._unanswered)

    @classmethod
    async def open(cls, address: Address) -> Connection:
        """Connects, and asks the server once whether it has room: it says so only when it's asked.

        Raises:
            Full: The server is at its limit.
            AgentEnvError: The server refuses us: a token is missing or wrong, or it's no OpenEnv server.
            EpisodeError: Nothing answers, for now.
        """
        held[address.url] += 1  # before anything is awaited: sessions that open at the same time spread too
        try:
            connection = cls(await _dial(address), address)
        except BaseException:
            held[address.url] -= 1
            raise
        try:
            question = asyncio.ensure_future(
                connection.ask(
                    {"type": "state"}, seconds=OPEN_SECONDS, phase="queue", missed="the server didn't answer"
                )
            )
            await asyncio.sleep(0)  # the question waits for an answer before one may arrive
            connection._reader = asyncio.create_task(connection._read())
            try:
                await question
            except EpisodeError:
                if connection.lost is not None:
                    raise
                # an environment that can't tell its state before a reset: there's room for it all the same
        except BaseException:
            await connection.close()
            raise
        return connection

    async def ask(self, message: Mapping[str, Any], *, seconds: float, phase: Phase, missed: str) -> dict[str, Any]:
        """Sends ``message`` and waits for its answer.

        Args:
            message: What to send.
            seconds: How long to wait. The server keeps the real deadline; this one is for a server that doesn't.
            phase: What the episode is doing.
            missed: The reason to give when no answer came in time.

        Returns:
            The answer's ``data``.

        Raises:
            EpisodeError: No answer came; the connection is dropped.
            Full: The server is at its limit, which it says on the first question.
            TypeError: ``message`` can't be written as JSON; nothing was sent.
        """
        try:  # first of all: a question that isn't sent must not wait for an answer
            text = json.dumps(message, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as exc:
            raise TypeError(f"this can't be sent as JSON: {exc}") from None
        async with self._sending:
            if self.lost is not None:
                raise EpisodeError(phase, self.lost.reason, retryable=True)
            answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
            self._unanswered.append(answer)
            try:
                await self._socket.send(text)
            except ConnectionClosed:
                pass  # the reader notices it too, and says why
            except BaseException:  # nobody knows whether it was sent, and so whose the next answer is
                self.drop(EpisodeError(phase, "a message was broken off while it was sent", retryable=True))
                raise
        try:
            async with asyncio.timeout(seconds):
                reply = await answer
        except TimeoutError:
            self.drop(EpisodeError(phase, missed, retryable=True))
            raise EpisodeError(phase, missed, retryable=True) from None
        except EpisodeError as lost:
            raise EpisodeError(phase, lost.reason, retryable=True) from None
        return self._data(reply, phase)

    def _data(self, reply: dict[str, Any], phase: Phase) -> dict[str, Any]:
        data: dict[str, Any] = reply.get("data") or {}
        if reply.get("type") != "error":
            return data
        if data.get("code") == CAPACITY:
            raise Full(self.address.url, data.get("max_sessions", "its"))
        raise EpisodeError(phase, f"the server answered with an error: {data.get('message')} ({data.get('code')})")

    async def _read(self) -> None:
        """Hands out answers until the socket ends."""
        try:
            async for raw in self._socket:
                reply = json.loads(raw)
                if not isinstance(reply, dict) or not isinstance(reply.get("data") or {}, dict):
                    raise TypeError(f"it sent {raw[:80]!r}, which is no message of OpenEnv's")
                if not self._unanswered:
                    logger.debug("an answer nobody asked for: %.200r", raw)
                elif not (future := self._unanswered.popleft()).done():
                    future.set_result(reply)
            reason = _how_it_closed(self._socket)
        except ConnectionClosed:
            reason = _how_it_closed(self._socket)
        except Exception as exc:  # what can't be read can't be matched with its question either
            reason = describe(exc)
        self.drop(EpisodeError("queue", f"the connection to {self.address.url} was lost: {reason}", retryable=True))

    def drop(self, why: EpisodeError) -> None:
        """Gives up on the connection: everything still waiting on it fails."""
        if self.lost is None:
            self._socket.transport.abort()
        lost = self._lose(why)
        while self._unanswered:
            future = self._unanswered.popleft()
            if not future.done():
                future.set_exception(lost)
                future.exception()  # whoever asked may have gone

    def _lose(self, why: EpisodeError) -> EpisodeError:
        """Notes that the connection is gone; returns why it went, which the first to notice says."""
        if self.lost is None:
            self.lost = why
            held[self.address.url] -= 1
        return self.lost

    async def close(self) -> None:
        """Says goodbye and closes; never raises."""
        closed = EpisodeError("queue", "the session was closed")
        if self.lost is None:
            with contextlib.suppress(Exception):
                await self._socket.send('{"type": "close"}')
            self._lose(closed)
        with contextlib.suppress(Exception):
            await self._socket.close()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self.drop(closed)


async def _dial(address: Address) -> ClientConnection:
    proxy: dict[str, Any] = {"proxy": None} if address.loopback else {}
    try:
        return await connect(
            address.socket_url,
            additional_headers=address.headers,
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=5,
            logger=_wire,
            **proxy,
        )
    except InvalidStatus as refusal:
        raise _refused(address, refusal.response.status_code) from None
    except (InvalidURI, ProxyError) as exc:
        raise AgentEnvError(f"the server at {address.url} can't be reached: {describe(exc)}") from None
    except (OSError, TimeoutError, InvalidHandshake) as exc:
        raise EpisodeError(
            "queue", f"nothing answers at {address.url}: {describe(exc)}; is the server still running?", retryable=True
        ) from None


def _refused(address: Address, status: int) -> AgentEnvError:
    if status in (401, 403):
        given = "refused the token it was given" if address.token else "asks for a token"
        return AgentEnvError(f"the server at {address.url} {given}: pass token=, or set AGENT_ENV_TOKEN here and there")
    if status >= 500:
        return EpisodeError("queue", f"the server at {address.url} answered with HTTP {status}", retryable=True)
    return AgentEnvError(f"the server at {address.url} is no OpenEnv server: it answered /ws with HTTP {status}")


def _how_it_closed(socket: ClientConnection) -> str:
    code, reason = socket.close_code, socket.close_reason
    known = {1001: "it went away", 1006: "it broke off", 1011: "it was silent for 40 s", 1012: "it is shutting down"}
    said = known.get(code or 1006, f"it closed with code {code}")
    return f"{said} ({reason})" if reason else said

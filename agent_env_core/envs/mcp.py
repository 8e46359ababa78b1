"""A small MCP client over streamable HTTP, on an HTTP client that is handed to it.

Own code for three reasons: a client that makes its own HTTP client spends 18 ms of CPU a session on a TLS context that
a plain-text address never uses (32 turns: 0.6 s of a blocked event loop); an answer must be bounded while it is read,
not after; and lines of an event stream end at line feeds only, while JSON may hold what else Python splits lines at.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from agent_env_core.errors import AgentEnvError

PROTOCOL = "2025-06-18"
ROLE_HEADER = "AgentEnv-Role"
ROLE_META = "agentenv.io/role"
SESSION_META = "agentenv.io/session"
MAX_ANSWER = 32 * 1024 * 1024
"""Bytes of one answer that are read at most."""

END_AFTER = 0.05
"""Seconds in which a body should end behind what is wanted of it; streams that don't aren't waited for again."""


class McpError(AgentEnvError):
    """The server answered, but not as MCP has it: an HTTP error, a lost session, an unreadable or oversized body."""


class McpRefusal(Exception):
    """The server answered with a JSON-RPC error: it runs, and refuses this request."""


class McpSession:
    """One MCP session with one server. Requests may run side by side; none is ever repeated.

    Args:
        client: The env's HTTP client. Deadlines are the caller's, e.g. by ``asyncio.timeout``.
        url: The server's MCP endpoint.
        headers: Sent with every request.
        role: The caller's role; None sends none.

    Attributes:
        role: The same.
    """

    def __init__(
        self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str], role: str | None = None
    ) -> None:
        self._client = client
        self._url = url
        self.role = role
        self._headers = {**headers, "Accept": "application/json, text/event-stream"}
        if role:
            self._headers[ROLE_HEADER] = role
        self._ids = itertools.count(1)
        self._session: str | None = None
        self._open = False
        self._lingers = False  # whether the server leaves its streams open behind an answer
        self._key = uuid.uuid4().hex  # names the caller's session to tools; a server may have no sessions of its own

    async def open(self) -> None:
        """Starts the session, unless that was done."""
        if self._open:
            return
        client = {"name": "agent-env", "version": "1"}
        answer = await self._request(
            "initialize", {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        )
        self._headers["MCP-Protocol-Version"] = str(answer.get("protocolVersion") or PROTOCOL)
        await self._exchange({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._open = True

    async def ping(self) -> None:
        """Returns when the server has answered, and raises McpError where it doesn't know the session any more."""
        with contextlib.suppress(McpRefusal):  # it has no such method, and answers
            await self._request("ping", {})

    async def list_tools(self) -> list[dict[str, Any]]:
        """The server's tools, all pages of them, as it describes them."""
        tools: list[dict[str, Any]] = []
        seen: set[str] = set()
        params: dict[str, Any] = {}
        while True:
            answer = await self._request("tools/list", params)
            page = answer.get("tools")
            if not isinstance(page, list) or not all(isinstance(_name(tool), str) for tool in page):
                raise McpError("tools/list: the answer holds no list of named tools")
            tools += page
            cursor = answer.get("nextCursor")
            if not cursor:
                return tools
            if cursor in seen:
                raise McpError(f"tools/list: the page {cursor!r} leads back to itself")
            seen.add(cursor)
            params = {"cursor": cursor}

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Calls a tool and returns the result as the server gave it."""
        meta = {key: value for key, value in ((ROLE_META, self.role), (SESSION_META, self._key)) if value}
        return await self._request("tools/call", {"name": name, "arguments": dict(arguments), "_meta": meta})

    async def close(self) -> None:
        """Tells the server that the session is over. A server that is gone, or doesn't care, is no error."""
        if self._session is not None:
            with contextlib.suppress(httpx.HTTPError):
                await self._client.delete(self._url, headers=self._headers)
            self._session = None

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        answer = await self._exchange({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        if (error := answer.get("error")) is not None:
            detail = error.get("message") if isinstance(error, dict) else error
            raise McpRefusal(str(detail))
        result = answer.get("result")
        if not isinstance(result, dict):
            raise McpError(f"{method}: the answer holds no result")
        return result

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends one message and, if it is a request, returns the answer that bears its id."""
        method = message["method"]
        async with self._client.stream("POST", self._url, json=message, headers=self._headers) as response:
            if response.status_code >= 400:
                raise McpError(await self._refused(response, method))
            if "id" not in message:
                with contextlib.suppress(TimeoutError, httpx.HTTPError):
                    async with asyncio.timeout(END_AFTER):
                        await _bounded(response, 4096)
                return {}
            if method == "initialize" and (session := response.headers.get("Mcp-Session-Id")):
                self._session = self._headers["Mcp-Session-Id"] = session
            try:
                answer = await self._answer(response, message["id"])
            except (ValueError, RecursionError) as exc:
                raise McpError(f"{method}: the answer can't be read: {exc}") from exc
        if answer is None:
            raise McpError(f"{method}: the server's stream ended without an answer")
        return answer

    async def _answer(self, response: httpx.Response, number: int) -> dict[str, Any] | None:
        """The answer of this id. The body is read to its end: a connection left before that isn't used again."""
        found: dict[str, Any] | None = None
        try:
            async with asyncio.timeout(None) as patience:
                async for answer in _answers(response):
                    if found is None and answer.get("id") == number and ("result" in answer or "error" in answer):
                        found = answer
                        if self._lingers:
                            break
                        patience.reschedule(asyncio.get_running_loop().time() + END_AFTER)
        except TimeoutError:
            if found is None:
                raise
            self._lingers = True
        except (ValueError, RecursionError, httpx.HTTPError):
            if found is None:
                raise
        return found

    async def _refused(self, response: httpx.Response, method: str) -> str:
        if response.status_code == 404 and self._session is not None:
            return f"{method}: the server no longer knows the session; it was restarted, and its state may be lost"
        body = await _bounded(response, 4096)
        return f"{method}: HTTP {response.status_code}: {body[:1000].decode(errors='replace')}"


def _name(tool: Any) -> Any:
    return tool.get("name") if isinstance(tool, dict) else None


async def _bounded(response: httpx.Response, limit: int) -> bytes:
    """The first ``limit`` bytes of a body, and at most one chunk more."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            break
    return bytes(body)


async def _answers(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a body, which is one object or a stream of events.

    Raises:
        ValueError: It is neither, or goes past :data:`MAX_ANSWER`.
    """
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        body = await _bounded(response, MAX_ANSWER)
        if len(body) > MAX_ANSWER:
            raise ValueError(f"it is larger than {MAX_ANSWER >> 20} MiB")
        if isinstance(answer := json.loads(body), dict):
            yield answer
    elif kind == "text/event-stream":
        async for text in _events(response):
            if isinstance(answer := json.loads(text), dict):
                yield answer
    else:
        raise ValueError(f"its content type is {kind!r}")


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each message in a stream of server-sent events; empty ones are left out."""
    event = b"message"
    data: list[bytes] = []
    async for line in _lines(response):
        if not line:
            text = b"\n".join(data)
            if text.strip() and event == b"message":
                yield text
            event, data = b"message", []
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            event = value.strip()


async def _lines(response: httpx.Response) -> AsyncIterator[bytes]:
    """The lines of a body, split at line feeds alone: a text may hold other characters that Python splits at."""
    size = 0
    begun: list[bytes] = []
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > MAX_ANSWER:
            raise ValueError(f"it is larger than {MAX_ANSWER >> 20} MiB")
        first, *more = chunk.split(b"\n")
        begun.append(first)
        for part in more:
            yield b"".join(begun).removesuffix(b"\r")
            begun = [part]

"""The tools of one turn: one MCP session with each of its servers, and the union of what they offer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from agent_env_core.envs.mcp import McpError, McpRefusal, McpSession
from agent_env_core.envs.results import Tool, ToolResult, failed, read_result
from agent_env_core.errors import EpisodeError

if TYPE_CHECKING:
    from agent_env_core.envs.deployment import Deployment

LIST_TIMEOUT = 60.0
"""Seconds a server has to open a session and list its tools."""
CLOSE_TIMEOUT = 2.0
HIDDEN_META = "agentenv.io/hiddenByDefault"


@dataclass(frozen=True)
class Route:
    """A tool, and how it is reached.

    Attributes:
        tool: The tool.
        env: The env that a task knows it by: its access rules and triggers count.
        server: The server of that env that has it.
        session: The session with the server.
    """

    tool: Tool
    env: Deployment
    server: Deployment
    session: McpSession

    def allowed(self, role: str | None) -> bool:
        """Whether a role may see and call it now."""
        return self.env.access.allows(role, self.tool.name, hidden=self.tool.hidden)


class Tools:
    """What an agent can call during one turn. Made by :func:`open_tools`."""

    def __init__(self, role: str | None, sessions: Sequence[McpSession], routes: Sequence[Route]) -> None:
        self._role = role
        self._sessions = sessions
        self._offered = {route.tool.name: route for route in routes if route.allowed(role)}

    async def list(self) -> tuple[Tool, ...]:
        """The tools on offer, server after server, as they were when the turn's tools were opened."""
        return tuple(route.tool for route in self._offered.values())

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = 60.0) -> ToolResult:
        """Calls a tool.

        Args:
            name: The tool.
            arguments: Its arguments, sent on as they are.
            timeout: Seconds it may take.

        Returns:
            What came of it. A tool that fails, is refused or doesn't exist is a result too.

        Raises:
            EpisodeError: The deadline passed, or the env can't be reached: what the call did is not known.
        """
        route = self._offered.get(name)
        if route is None:
            offered = ", ".join(self._offered) or "none"
            return failed("unknown", f"there is no tool {name!r}; this turn offers: {offered}")
        if not route.allowed(self._role):
            return failed("refused", f"the tool {name!r} is disabled for the role {self._role or 'default'!r}")
        arguments = {} if arguments is None else arguments
        began = time.monotonic()
        result = await call_route(route, arguments, timeout=timeout)
        if (triggers := route.env.triggers) is not None:
            left = max(0.0, timeout - (time.monotonic() - began))
            await triggers.after_call(self._role, name, arguments, result, at_most=left)
        return result

    async def close(self) -> None:
        """Ends the sessions; a server that doesn't answer is left alone after two seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await asyncio.gather(*(session.close() for session in self._sessions))


async def call_route(route: Route, arguments: Mapping[str, Any], *, timeout: float) -> ToolResult:
    """Calls a tool, whoever may; see :meth:`Tools.call` for what comes of it."""
    name = route.tool.name
    try:
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()  # half a surrogate pair can't be sent
    except (TypeError, ValueError, RecursionError) as exc:
        return failed("refused", f"the arguments of {name!r} can't be sent as JSON: {exc}")
    try:
        async with asyncio.timeout(timeout):
            return read_result(await route.session.call(name, arguments))
    except McpRefusal as exc:
        return failed("tool", str(exc))
    except TimeoutError as exc:
        reason = (
            f"{name} didn't answer within {timeout:g}s, and the episode ended, since what the call does may still"
            " be under way"
        )
        raise EpisodeError("tool", reason, retryable=True) from exc
    except (McpError, httpx.HTTPError, ValueError) as exc:
        raise await route.server.failure(exc, "tool", name) from exc


async def open_tools(envs: Sequence[Deployment], role: str | None) -> Tools:
    """Opens a session with every server of every env and lists what they offer to a role.

    Raises:
        EpisodeError: A server doesn't answer, lists a tool twice, or offers one that another offers too.
    """
    sessions, routes = await open_routes(envs, role)
    return Tools(role, sessions, routes)


async def open_routes(envs: Sequence[Deployment], role: str | None) -> tuple[list[McpSession], list[Route]]:
    """Opens a session with every server of every env and lists all it has; raises like :func:`open_tools`."""
    servers = [(env, server) for env in envs for server in env.servers]
    sessions = [server.session(role) for _, server in servers]
    listings = [
        asyncio.create_task(_open(server, session)) for (_, server), session in zip(servers, sessions, strict=True)
    ]
    try:
        tools = [await listing for listing in listings]
    finally:
        for listing in listings:
            listing.cancel()
        await asyncio.gather(*listings, return_exceptions=True)
    found = zip(servers, sessions, tools, strict=True)
    routes = [Route(tool, env, server, session) for (env, server), session, offered in found for tool in offered]
    _refuse_clashes(routes)
    return sessions, routes


async def _open(env: Deployment, session: McpSession) -> list[Tool]:
    name = env.env.name
    try:
        async with asyncio.timeout(LIST_TIMEOUT):
            await session.open()
            listed = await session.list_tools()
    except TimeoutError as exc:
        reason = f"the env {name!r} didn't list its tools within {LIST_TIMEOUT:g}s"
        raise EpisodeError("turn", reason, retryable=True) from exc
    except McpRefusal as exc:
        raise EpisodeError("turn", f"the env {name!r} refuses to list its tools: {exc}") from exc
    except (McpError, httpx.HTTPError) as exc:
        raise await env.failure(exc, "turn", "listing its tools") from exc
    return [_read_tool(tool, name) for tool in listed]


def _read_tool(tool: Mapping[str, Any], server: str) -> Tool:
    schema = tool.get("inputSchema")
    meta = tool.get("_meta")
    return Tool(
        name=tool["name"],
        description=str(tool.get("description") or ""),
        input_schema=schema if isinstance(schema, dict) else {"type": "object", "properties": {}},
        server=server,
        hidden=isinstance(meta, dict) and meta.get(HIDDEN_META) is True,
    )


def _refuse_clashes(routes: Sequence[Route]) -> None:
    owners: dict[str, Route] = {}
    for route in routes:
        other = owners.setdefault(route.tool.name, route)
        if other is route:
            continue
        tool, server = route.tool.name, route.tool.server
        if other.session is route.session:
            raise EpisodeError("turn", f"the env {server!r} lists the tool {tool!r} twice")
        fix = "rename one of them, e.g. after its env"
        raise EpisodeError("turn", f"the envs {other.tool.server!r} and {server!r} both offer a tool {tool!r}: {fix}")

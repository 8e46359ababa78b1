"""The tools of one turn: one MCP session with each of its servers, and the union of what they offer."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
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


class Tools:
    """What an agent can call during one turn. Made by :func:`open_tools`."""

    def __init__(
        self, role: str | None, sessions: Mapping[str, tuple[Deployment, McpSession]], tools: Sequence[Tool]
    ) -> None:
        self._role = role
        self._sessions = sessions
        self._offered = {tool.name: tool for tool in tools if self._allowed(tool)}

    def _allowed(self, tool: Tool) -> bool:
        return self._sessions[tool.server][0].access.allows(self._role, tool.name, hidden=tool.hidden)

    async def list(self) -> tuple[Tool, ...]:
        """The tools on offer, server after server, as they were when the turn's tools were opened."""
        return tuple(self._offered.values())

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
        tool = self._offered.get(name)
        if tool is None:
            offered = ", ".join(self._offered) or "none"
            return failed("unknown", f"there is no tool {name!r}; this turn offers: {offered}")
        if not self._allowed(tool):
            return failed("refused", f"the tool {name!r} is disabled for the role {self._role or 'default'!r}")
        arguments = {} if arguments is None else arguments
        try:
            json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()  # half a surrogate pair can't be sent
        except (TypeError, ValueError, RecursionError) as exc:
            return failed("refused", f"the arguments of {name!r} can't be sent as JSON: {exc}")
        env, session = self._sessions[tool.server]
        try:
            async with asyncio.timeout(timeout):
                return read_result(await session.call(name, arguments))
        except McpRefusal as exc:
            return failed("tool", str(exc))
        except TimeoutError as exc:
            reason = (
                f"{name} didn't answer within {timeout:g}s, and the episode ended, since what the call does may still"
                " be under way"
            )
            raise EpisodeError("tool", reason, retryable=True) from exc
        except (McpError, httpx.HTTPError, ValueError) as exc:
            raise await env.failure(exc, "tool", name) from exc

    async def close(self) -> None:
        """Ends the sessions; a server that doesn't answer is left alone after two seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await asyncio.gather(*(session.close() for _, session in self._sessions.values()))


async def open_tools(envs: Sequence[Deployment], role: str | None) -> Tools:
    """Opens a session with every env and lists what they offer to a role.

    Raises:
        EpisodeError: An env doesn't answer, lists a tool twice, or offers one that another offers too.
    """
    sessions = {env.env.name: (env, McpSession(env.client, env.mcp_url, env.headers, role)) for env in envs}
    listings = [asyncio.create_task(_open(env, session)) for env, session in sessions.values()]
    try:
        tools = [tool for listing in listings for tool in await listing]
    finally:
        for listing in listings:
            listing.cancel()
        await asyncio.gather(*listings, return_exceptions=True)
    _refuse_clashes(tools)
    return Tools(role, sessions, tools)


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


def _refuse_clashes(tools: Sequence[Tool]) -> None:
    owners: dict[str, str] = {}
    for tool in tools:
        other = owners.setdefault(tool.name, tool.server)
        if other != tool.server:
            fix = "rename one of them, e.g. after its env"
            raise EpisodeError("turn", f"the envs {other!r} and {tool.server!r} both offer a tool {tool.name!r}: {fix}")
    counts: dict[str, int] = {}
    for tool in tools:
        counts[tool.name] = counts.get(tool.name, 0) + 1
    twice = [tool for tool in tools if counts[tool.name] > 1]
    if twice:
        raise EpisodeError("turn", f"the env {twice[0].server!r} lists the tool {twice[0].name!r} twice")

"""Calls to an env's tools that no agent makes: those of triggers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from agent_env_core.envs.deployment import Deployment
from agent_env_core.envs.mcp import McpError, McpRefusal, McpSession
from agent_env_core.envs.results import ToolResult, failed
from agent_env_core.envs.session import CLOSE_TIMEOUT, Route, call_route, open_routes

CALL_TIMEOUT = 60.0


class DirectTools:
    """All tools of one env, past its access rules. Made by :meth:`open`.

    Attributes:
        routes: How each is reached, by name.
    """

    def __init__(self, sessions: list[McpSession], routes: list[Route]) -> None:
        self.routes: Mapping[str, Route] = {route.tool.name: route for route in routes}
        self._sessions = sessions
        self._in_role: dict[tuple[str, str], McpSession] = {}
        self._opening = asyncio.Lock()

    @classmethod
    async def open(cls, env: Deployment) -> DirectTools:
        """Opens a session with each of the env's servers.

        Raises:
            EpisodeError: A server doesn't answer, or two offer a tool of one name.
        """
        return cls(*await open_routes([env], None))

    async def call(self, name: str, arguments: Mapping[str, Any], role: str | None = None) -> ToolResult:
        """Calls a tool, in a role if one is given.

        Raises:
            EpisodeError: It didn't answer, or its server can't be reached.
        """
        route = self.routes.get(name)
        if route is None:
            return failed("unknown", f"the env has no tool {name!r}")
        if role is not None:
            route = replace(route, session=await self._session(route, role))
        return await call_route(route, arguments, timeout=CALL_TIMEOUT)

    async def _session(self, route: Route, role: str) -> McpSession:
        key = route.server.env.id, role
        async with self._opening:
            if key not in self._in_role:
                session = route.server.session(role)
                try:
                    async with asyncio.timeout(CALL_TIMEOUT):
                        await session.open()
                except (McpError, McpRefusal, httpx.HTTPError, TimeoutError) as exc:
                    doing = f"opening a session in the role {role!r}"
                    raise await route.server.failure(exc, "tool", doing) from exc
                self._in_role[key] = session
            return self._in_role[key]

    async def close(self) -> None:
        """Ends the sessions; a server that doesn't answer is left alone after two seconds."""
        sessions = [*self._sessions, *self._in_role.values()]
        ends = [asyncio.wait_for(session.close(), CLOSE_TIMEOUT) for session in sessions]
        await asyncio.gather(*ends, return_exceptions=True)

"""A composed env seen as one server, over HTTP on this machine's loopback.

Agents don't need it: their calls go to the server that has the tool. Verifiers do, since they are given one address and
may read the whole card, call any tool, or look at one child below ``/svc/mcp-<name>``, as behind the published gateway.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import httpx

from agent_env_core.envs.card import CARD_PATH, MCP_PATH, RPC_PATH
from agent_env_core.envs.deployment import MAX_CARD, TRY_TIMEOUT, Deployment
from agent_env_core.envs.direct import DirectTools
from agent_env_core.envs.http import TooLarge, fetch
from agent_env_core.envs.mcp import PROTOCOL, ROLE_HEADER
from agent_env_core.envs.results import ToolResult, failed
from agent_env_core.errors import EpisodeError, describe

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

FORWARD_TIMEOUT = 600.0
SEVERAL = "this env has several servers; ask one of them, below /svc/mcp-<name>"
_HOP = frozenset({"connection", "content-length", "host", "transfer-encoding", "accept-encoding", "keep-alive"})


class Gateway:
    """Serves one composed env until :meth:`close`. Made by :meth:`open`.

    Attributes:
        url: Its address, which nobody guesses: the path begins with a secret.
    """

    def __init__(self, env: Deployment, tools: DirectTools, card: Mapping[str, Any]) -> None:
        self._env = env
        self._tools = tools
        self._card = card
        self._servers = {server.card.name: server for server in env.servers}
        self._close: Callable[[], Awaitable[None]] | None = None
        self.url = ""

    @classmethod
    async def open(cls, env: Deployment, tools: DirectTools) -> Gateway:
        """Starts to serve.

        Args:
            env: The env.
            tools: All tools of it; closed with this.

        Raises:
            EpisodeError: A child's card can't be read any more.
        """
        children = [_moved(await _raw_card(server), server.card.name) for server in env.servers]
        own = {
            "name": env.card.name,
            "protocolVersion": "1.0",
            "url": RPC_PATH,
            "preferredTransport": "JSONRPC",
            "additionalInterfaces": [{"url": MCP_PATH, "transport": "mcp"}],
            "capabilities": {"extensions": [], "tools": [], "operations": []},
            "children_environments": children,
        }
        gateway = cls(env, tools, own)
        await gateway._listen()
        return gateway

    async def close(self) -> None:
        """Ends it and its sessions with the env's servers."""
        if self._close is not None:
            await self._close()
        await self._tools.close()

    # -- what it answers

    async def _card_of_all(self, request: Request) -> Response:
        return _json(self._card)

    async def _rpc(self, request: Request) -> Response:
        if len(self._servers) == 1:
            return await self._forward(next(iter(self._servers.values())), RPC_PATH, request)
        message = await _body(request)
        error = {"code": -32000, "message": SEVERAL}
        return _json({"jsonrpc": "2.0", "id": message.get("id"), "error": error})

    async def _child(self, request: Request) -> Response:
        server = self._servers.get(request.path_params["name"])
        if server is None:
            return _json({"error": f"there is no server {request.path_params['name']!r}"}, 404)
        return await self._forward(server, "/" + request.path_params["path"], request)

    async def _forward(self, server: Deployment, path: str, request: Request) -> Response:
        from starlette.responses import Response

        headers = {name: value for name, value in request.headers.items() if name not in _HOP}
        url = server.base_url + path + (f"?{request.url.query}" if request.url.query else "")
        try:
            async with asyncio.timeout(FORWARD_TIMEOUT):
                body, all_headers = await request.body(), {**headers, **server.headers}
                answer = await fetch(server.client, request.method, url, all_headers, content=body)
        except (TimeoutError, httpx.HTTPError, TooLarge) as exc:
            return _json({"error": f"the server {server.card.name!r} can't be reached: {describe(exc)}"}, 502)
        return Response(answer.body, answer.status, media_type=answer.kind)

    async def _state(self, request: Request) -> Response:
        listed = []
        for name in self._servers:
            tools = [route.tool for route in self._tools.routes.values() if route.server.card.name == name]
            shown = [{"name": t.name, "description": t.description, "parameters": t.input_schema} for t in tools]
            listed.append({"name": name, "tools": shown})
        return _json({"mcp_servers": listed, "tool_name_clashes": {}})

    async def _mcp(self, request: Request) -> Response:
        from starlette.responses import Response

        if request.method != "POST":
            return Response(status_code=200 if request.method == "DELETE" else 405)
        message = await _body(request)
        if "id" not in message:
            return Response(status_code=202)
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        given = message.get("params")
        params = given if isinstance(given, dict) else {}
        role = request.headers.get(ROLE_HEADER)
        headers = {}
        match message.get("method"):
            case "initialize":
                headers = {"Mcp-Session-Id": uuid.uuid4().hex}
                info = {"name": self._env.card.name, "version": "1"}
                known = params.get("protocolVersion") or PROTOCOL
                answer["result"] = {"protocolVersion": known, "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                answer["result"] = {"tools": self._listed(role)}
            case "tools/call":
                answer["result"] = _result(await self._called(params, role))
            case "ping":
                answer["result"] = {}
            case other:
                answer["error"] = {"code": -32601, "message": f"method not found: {other}"}
        return _json(answer, headers=headers)

    def _listed(self, role: str | None) -> list[dict[str, Any]]:
        return [
            {"name": route.tool.name, "description": route.tool.description, "inputSchema": route.tool.input_schema}
            for route in self._tools.routes.values()
            if route.allowed(role)
        ]

    async def _called(self, params: Mapping[str, Any], role: str | None) -> ToolResult:
        name = str(params.get("name"))
        route = self._tools.routes.get(name)
        if route is not None and not route.allowed(role):
            text = f"permission_denied: the tool {name!r} is disabled for the role {role or 'default'!r}"
            return failed("refused", text)
        arguments = params.get("arguments") or {}
        if not isinstance(arguments, dict):
            return failed("refused", f"the arguments of {name!r} are no object")
        try:
            return await self._tools.call(name, arguments, role)
        except EpisodeError as exc:
            return failed("tool", exc.reason)

    # -- how it listens

    def _app(self, secret: str) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Mount, Route

        every = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        routes = [
            Route(CARD_PATH, self._card_of_all),
            Route(RPC_PATH, self._rpc, methods=["POST"]),
            Route(MCP_PATH, self._mcp, methods=["GET", "POST", "DELETE"]),
            Route("/state", self._state),
            Route("/svc/mcp-{name}/{path:path}", self._child, methods=every),
        ]
        return Starlette(routes=[Mount(f"/{secret}", routes=routes)])

    async def _listen(self) -> None:
        import uvicorn

        secret = secrets.token_urlsafe(16)
        config = uvicorn.Config(self._app(secret), log_config=None, access_log=False, lifespan="off")
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        listening = socket.create_server(("127.0.0.1", 0))
        await server.startup(sockets=[listening])  # not serve(): that takes over the signals of this process
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}/{secret}"

        async def close() -> None:
            server.force_exit = True
            await server.shutdown(sockets=[listening])

        self._close = close


async def _raw_card(server: Deployment) -> Any:
    try:
        async with asyncio.timeout(TRY_TIMEOUT):
            answer = await fetch(server.client, "GET", server.base_url + CARD_PATH, server.headers, limit=MAX_CARD)
        return answer.json()
    except TimeoutError as exc:
        reason = f"the card of the env {server.env.name!r} didn't come within {TRY_TIMEOUT:g}s"
        raise EpisodeError("deploy", reason, retryable=True) from exc
    except (httpx.HTTPError, ValueError) as exc:
        raise await server.failure(exc, "deploy", "reading its card") from exc


def _moved(card: Any, name: str) -> Any:
    """A child's card with its addresses as they are behind the gateway."""
    below = f"/svc/mcp-{name}"

    def moved(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {inner: moved(item, inner) for inner, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        return below + value if key in ("url", "endpoint") and isinstance(value, str) and value[:1] == "/" else value

    return moved(card)


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(json.dumps(body), status, headers=headers, media_type="application/json")


async def _body(request: Request) -> dict[str, Any]:
    """A JSON object; empty where a request brings none."""
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _result(result: ToolResult) -> dict[str, Any]:
    return {"content": list(result.content), "isError": result.is_error}

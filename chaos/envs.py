"""The counter bundle, and its env as an application of this process: what a fake sandbox answers with."""

from __future__ import annotations

import asyncio
import json
import runpy
import uuid
from pathlib import Path
from typing import Any

from agent_env_core.sandbox.contract import SandboxSpec

COUNTER = Path(__file__).resolve().parents[1] / "tests" / "bundles" / "counter"

CARD: dict[str, Any] = runpy.run_path(str(COUNTER / "envs" / "counter" / "server.py"))["CARD"]
"""What the bundle's own server says of itself."""

TOOLS = {"add": {"amount": {"type": "integer"}}, "hang": {}, "slow": {}}


class Counter:
    """An env that counts, as the one in the bundle does. An ASGI application, one for each sandbox."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.world: dict[str, Any] = {"value": 0, "goal": 3, "calls": 0, "verify": "", "roles": []}

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer, headers = await self.answer(scope["method"], scope["path"], json.loads(body or b"{}"))
        data = b"" if answer is None else json.dumps(answer).encode()
        headers = {"content-type": "application/json", "content-length": str(len(data)), **headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": data})

    async def answer(self, method: str, path: str, asked: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON, headers."""
        match method, path:
            case "GET", "/.well-known/agent-env.json":
                return 200, CARD, {}
            case "POST", "/agentenv/ext/load":
                self.world |= {"value": asked.get("start", 0), "goal": asked["goal"], "verify": asked.get("verify", "")}
                return 200, {"value": self.world["value"]}, {}
            case "POST", "/agentenv":
                parts = {"parts": [{"kind": "data", "data": self.world}]}
                return 200, {"jsonrpc": "2.0", "id": asked.get("id"), "result": parts}, {}
            case "POST", "/mcp":
                return await self.mcp(asked)
            case "DELETE", _:
                return 200, None, {}
        return 405, {"error": path}, {}

    async def mcp(self, asked: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
        """One MCP message."""
        if "id" not in asked:
            return 202, None, {}
        headers: dict[str, str] = {}
        match asked["method"]:
            case "initialize":
                headers = {"mcp-session-id": uuid.uuid4().hex}
                info = {"name": "counter", "version": "1"}
                able: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                result = {**able, "serverInfo": info}
            case "tools/list":
                schema = {"type": "object"}
                result = {"tools": [{"name": n, "inputSchema": {**schema, "properties": p}} for n, p in TOOLS.items()]}
            case _:
                result = await self.call(asked["params"])
        return 200, {"jsonrpc": "2.0", "id": asked["id"], "result": result}, headers

    async def call(self, params: dict[str, Any]) -> dict[str, Any]:
        """A tool call."""
        match params["name"]:
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "slow":
                await asyncio.sleep(0.2)
        self.world["calls"] += 1
        self.world["value"] += params.get("arguments", {}).get("amount", 0)
        return {"content": [{"type": "text", "text": json.dumps({"value": self.world["value"]})}], "isError": False}

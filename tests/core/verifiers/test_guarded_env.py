"""A verifier reaches an env that wants headers, as sandboxes elsewhere do, with whatever it calls the env by."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from agentenv_protocol import AgentEnvEnvironment, DataPart, environment_card, extension, get_data, tool

from agent_env_core.errors import EpisodeError
from agent_env_core.verifiers.pool import VerifierJob, VerifierPool

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEADERS = {"X-Sandbox-Token": "let-me-in"}

CLIENT = """
from agentenv_protocol import client

async def verify(mcp_url):
    base_url = mcp_url.removesuffix("/mcp")
    card = await client.get_card(base_url)
    said = await client.invoke_extension(base_url, card, "urn:vault:open/v1", {"word": "sesame"}, 10)
    state = (await client.get_data(base_url)).parts[0].data
    return [{"id": card["name"], "result": said == {"opened": "sesame"}, "state": state}]
"""
SESSION = """
from agentenv_protocol import ToolSession

async def verify(mcp_url):
    async with ToolSession(mcp_url=mcp_url) as session:
        tools = [tool.name for tool in await session.list_tools()]
        answer = await session.call_tool("peek", {})
    return [{"result": answer.text == "gold", "tools": tools}]
"""
MCP = """
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

async def verify(mcp_url):
    async with streamablehttp_client(mcp_url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        answer = await session.call_tool("peek", {})
    return [{"result": answer.content[0].text == "gold"}]
"""
PLAIN = """
import httpx

async def verify(mcp_url):
    httpx.get(mcp_url.removesuffix("/mcp") + "/.well-known/agent-env.json").raise_for_status()
    return [{"result": True}]
"""


@environment_card(name="vault")
class Vault(AgentEnvEnvironment):
    @tool()
    def peek(self) -> str:
        """Look inside."""
        return "gold"

    @extension("urn:vault:open/v1")
    def open(self, word: str) -> dict[str, str]:
        return {"opened": word}

    @get_data
    def state(self) -> list[DataPart]:
        return [DataPart(data={"gold": 1})]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def vault() -> AsyncIterator[str]:
    """The address of an env that answers nobody without its headers."""
    app = Vault().create_app().streamable_http_app()

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"x-sandbox-token") != b"let-me-in":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(guarded, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(timeout=20.0)
    await pool.start()
    yield pool
    await pool.aclose()


@pytest.mark.parametrize("code", [CLIENT, SESSION, MCP, PLAIN], ids=["client", "ToolSession", "mcp", "httpx"])
async def test_it_gets_in(vault: str, pool: VerifierPool, tmp_path: Path, code: str):
    file = tmp_path / "verify.py"
    file.write_text(code)
    (row,) = await pool.verify(VerifierJob(file, f"{vault}/mcp", vault, HEADERS))
    assert row["result"] is True
    with pytest.raises(EpisodeError, match="401"):
        await pool.verify(VerifierJob(file, f"{vault}/mcp", vault))


@pytest.mark.parametrize(
    ("base", "url", "stamped"),
    [
        ("http://env:8000", "http://env:8000/mcp", True),
        ("http://env:8000", "http://env:8000", True),
        ("http://env:80", "http://env:8080/mcp", False),
        ("http://env", "http://env.example/mcp", False),
        ("http://env", "http://env:81/mcp", False),
        ("http://env", "http://env:80/mcp", True),
        ("https://env", "http://env/mcp", False),
        ("https://host/a", "https://host/a/mcp", True),
        ("https://host/a", "https://host/ab/mcp", False),
        ("http://env", "http://env@elsewhere.example/", False),
    ],
)
async def test_the_key_goes_to_the_env_alone(pool: VerifierPool, tmp_path: Path, base: str, url: str, stamped: bool):
    file = tmp_path / "verify.py"
    file.write_text(f"""
import httpx

async def verify(mcp_url):
    seen = []
    class Wire:
        def handle_request(self, request):
            seen.append(any(name.lower() == b"x-sandbox-token" for name, _ in request.headers))
            raise httpx.ConnectError("no network here")
        def close(self):
            pass
    transport = httpx.HTTPTransport()
    transport._pool = Wire()
    try:
        transport.handle_request(httpx.Request("GET", {url!r}))
    except httpx.ConnectError:
        pass
    return [{{"stamped": seen}}]
""")
    assert await pool.verify(VerifierJob(file, f"{base}/mcp", base, HEADERS)) == [{"stamped": [stamped]}]

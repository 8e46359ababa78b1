"""The tools of a turn, over scripted servers: what goes over the wire, and what is made of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Env, EnvImage
from agent_env_core.envs import mcp, session
from agent_env_core.envs.card import read_card
from agent_env_core.envs.deployment import Deployment
from agent_env_core.envs.session import open_tools
from agent_env_core.errors import EpisodeError, Gone
from agent_env_core.sandbox.contract import Endpoint


class Key:
    """Equal to any key of a session."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and len(other) == 32

    __hash__ = None  # type: ignore[assignment]


KEY = Key()
Answer = Callable[[dict[str, Any]], Any]
TOOL = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}


class Box:
    """A sandbox of which only the life matters."""

    id = "box"

    def __init__(self) -> None:
        self.gone = ""

    async def endpoint(self, port: int) -> Endpoint:
        if self.gone:
            raise Gone(self.gone)
        return Endpoint("http://env")


class Server:
    """An MCP server with scripted answers; keeps every request.

    Attributes:
        answers: Method to the result, or to what makes a response of the request.
    """

    def __init__(self, tools: list[dict[str, Any]] | None = None) -> None:
        self.requests: list[httpx.Request] = []
        self.sse = False
        self.answers: dict[str, Any] = {
            "initialize": {"protocolVersion": "2025-03-26"},
            "tools/list": {"tools": [TOOL] if tools is None else tools},
            "tools/call": {"content": [{"type": "text", "text": "ok"}]},
        }

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests if request.method == "POST"]

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.method == "DELETE":
            return httpx.Response(200)
        message = json.loads(request.content)
        if "id" not in message:
            return httpx.Response(202)
        answer = self.answers[message["method"]]
        if callable(answer):
            answer = answer(message)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, httpx.Response):
            return answer
        headers = {"Mcp-Session-Id": "s1"} if message["method"] == "initialize" else {}
        reply = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}, ensure_ascii=False)
        if not self.sse:
            return httpx.Response(200, text=reply, headers={"content-type": "application/json", **headers})
        return httpx.Response(200, text=events(reply), headers={"content-type": "text/event-stream", **headers})


def events(*replies: str) -> str:
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress"})
    head = f": comment\r\nid: 1\r\ndata:\r\n\r\ndata: {note}\r\n\r\nevent: other\ndata: ignored\n\n"
    return head + "".join(f"event: message\ndata: {reply}\n\n" for reply in replies)


@pytest.fixture
async def deploy() -> AsyncIterator[Callable[..., Deployment]]:
    """A deployment whose HTTP goes to a scripted server."""
    clients: list[httpx.AsyncClient] = []

    def make(server: Server, name: str = "env", headers: dict[str, str] | None = None) -> Deployment:
        client = httpx.AsyncClient(transport=httpx.MockTransport(server))
        clients.append(client)
        env = Env(f"@local/{name}", name, "mcp_server", name, "server", EnvImage(ref="docker.io/x"), Path("/x"))
        return Deployment(env, "env", Box(), read_card({"name": name}), "http://env", headers or {}, client)  # type: ignore[arg-type]

    yield make
    for client in clients:
        await client.aclose()


async def test_one_session_a_turn_with_role_and_headers(deploy: Callable[..., Deployment]):
    server = Server()
    tools = await open_tools([deploy(server, headers={"X-Token": "t"})], "planner")
    assert (await tools.call("add", {"n": 1})).text == "ok"
    await tools.close()
    assert [message["method"] for message in server.sent] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
        "tools/call",
    ]
    assert server.sent[3]["params"] == {
        "name": "add",
        "arguments": {"n": 1},
        "_meta": {"agentenv.io/role": "planner", "agentenv.io/session": KEY},
    }
    assert server.requests[-1].method == "DELETE"
    assert {request.headers["X-Token"] for request in server.requests} == {"t"}
    assert {request.headers["AgentEnv-Role"] for request in server.requests} == {"planner"}
    later = server.requests[1:]
    assert {request.headers["Mcp-Session-Id"] for request in later} == {"s1"}
    assert {request.headers["MCP-Protocol-Version"] for request in later} == {"2025-03-26"}


async def test_no_role_sends_none(deploy: Callable[..., Deployment]):
    server = Server()
    tools = await open_tools([deploy(server)], None)
    await tools.call("add")
    assert "AgentEnv-Role" not in server.requests[-1].headers
    assert server.sent[-1]["params"]["_meta"] == {"agentenv.io/session": KEY}
    assert server.sent[-1]["params"]["arguments"] == {}


async def test_answers_in_events(deploy: Callable[..., Deployment]):
    server = Server()
    server.sse = True
    odd = "line\u2028separator\u0085and\x0bmore"
    server.answers["tools/call"] = {"content": [{"type": "text", "text": odd}]}
    tools = await open_tools([deploy(server)], None)
    assert (await tools.call("add")).text == odd


async def test_lists_come_in_pages(deploy: Callable[..., Deployment]):
    pages: dict[str, Any] = {"": {"tools": [TOOL], "nextCursor": "2"}, "2": {"tools": [{"name": "b"}]}}
    server = Server()
    server.answers["tools/list"] = lambda message: pages[message["params"].get("cursor", "")]
    tools = await (await open_tools([deploy(server)], None)).list()
    assert [(tool.name, tool.description, tool.input_schema["type"]) for tool in tools] == [
        ("add", "Adds.", "object"),
        ("b", "", "object"),
    ]


async def test_tools_are_those_of_the_server_to_the_letter_and_in_its_order(deploy: Callable[..., Deployment]):
    """A card's tools are coarser, and may not even be there; what SDKs put into schemas is the model's to see."""
    note = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Note"}
    berths = {"type": "array", "items": {"type": "integer"}, "title": "Berths"}
    schema = {"type": "object", "title": "submitArguments", "properties": {"berths": berths, "note": note}}
    server = Server([{"name": "submit", "description": "Plans.", "inputSchema": schema}, TOOL])
    deployment = deploy(server)
    shown = [{"name": "ghost"}, {"name": "submit", "description": "Old.", "inputSchema": {"type": "object"}}]
    deployment.card = read_card({"name": "env", "capabilities": {"tools": shown}})
    tools = await open_tools([deployment], None)
    offered = await tools.list()
    assert [(tool.name, tool.description) for tool in offered] == [("submit", "Plans."), ("add", "Adds.")]
    assert offered[0].input_schema == schema
    await tools.close()


async def test_the_union_of_several_servers(deploy: Callable[..., Deployment]):
    first, second = Server([{"name": "a"}]), Server([{"name": "b"}])
    tools = await open_tools([deploy(first, "one"), deploy(second, "two")], None)
    assert [(tool.name, tool.server) for tool in await tools.list()] == [("a", "one"), ("b", "two")]
    await tools.call("b")
    assert [message["method"] for message in second.sent][-1] == "tools/call"
    assert [message["method"] for message in first.sent][-1] == "tools/list"


async def test_a_name_that_two_servers_offer_is_refused_naming_both(deploy: Callable[..., Deployment]):
    with pytest.raises(EpisodeError, match="the envs 'one' and 'two' both offer a tool 'add'"):
        await open_tools([deploy(Server(), "one"), deploy(Server(), "two")], None)


async def test_access_is_looked_up_at_each_call(deploy: Callable[..., Deployment]):
    server = Server([TOOL, {"name": "hint", "_meta": {"agentenv.io/hiddenByDefault": True}}, {"name": "peek"}])
    env = deploy(server)
    env.access.change("disable", "default", ["peek"])
    tools = await open_tools([env], None)
    assert [tool.name for tool in await tools.list()] == ["add"]
    assert (await tools.call("peek")).failure == "unknown"
    env.access.change("disable", "*", ["add"])
    refused = await tools.call("add")
    assert (refused.failure, refused.text) == ("refused", "the tool 'add' is disabled for the role 'default'")
    assert [message["method"] for message in server.sent].count("tools/call") == 0


async def test_a_json_rpc_error_is_the_tools_answer(deploy: Callable[..., Deployment]):
    server = Server()
    error = {"jsonrpc": "2.0", "id": 3, "error": {"code": -32602, "message": "n is missing"}}
    server.answers["tools/call"] = lambda message: httpx.Response(200, json={**error, "id": message["id"]})
    result = await (await open_tools([deploy(server)], None)).call("add")
    assert (result.failure, result.text) == ("tool", "n is missing")


def unreachable(message: dict[str, Any]) -> None:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(500, text="oh no"), "add: the env 'env' failed: tools/call: HTTP 500: oh no"),
        (httpx.Response(404), "the server no longer knows the session"),
        (httpx.Response(200, text="<html>", headers={"content-type": "text/html"}), "its content type is 'text/html'"),
        (httpx.Response(200, text="{", headers={"content-type": "application/json"}), "the answer can't be read"),
        (httpx.Response(200, text="", headers={"content-type": "text/event-stream"}), "ended without an answer"),
        (httpx.Response(200, json={"id": 99, "result": {}}), "ended without an answer"),
        (lambda message: httpx.Response(200, json={"id": message["id"], "result": 3}), "holds no result"),
        ({"content": "text"}, "its content is no list"),
        (unreachable, "add: the env 'env' failed: ConnectError: refused"),
    ],
)
async def test_an_answer_that_is_none_ends_the_episode(deploy: Callable[..., Deployment], answer: Any, said: str):
    server = Server()
    tools = await open_tools([deploy(server)], None)
    server.answers["tools/call"] = answer
    with pytest.raises(EpisodeError, match=said) as caught:
        await tools.call("add")
    assert caught.value.phase == "tool"


async def test_an_oversized_answer_is_not_read_to_its_end(
    deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mcp, "MAX_ANSWER", 1 << 20)
    server = Server()
    tools = await open_tools([deploy(server)], None)
    read = 0

    async def flood() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 65536
            yield b"x" * 65536

    for kind in ("application/json", "text/event-stream"):
        server.answers["tools/call"] = httpx.Response(200, content=flood(), headers={"content-type": kind})
        with pytest.raises(EpisodeError, match="it is larger than 1 MiB"):
            await tools.call("add")
    assert read < 4 << 20


async def test_a_dead_env_is_told_in_its_providers_words(deploy: Callable[..., Deployment]):
    server = Server()
    env = deploy(server)
    tools = await open_tools([env], None)
    env.sandbox.gone = "exited with code 7; it last said: bye"  # type: ignore[attr-defined]
    server.answers["tools/call"] = unreachable
    with pytest.raises(EpisodeError, match="add: the env 'env' ended: exited with code 7; it last said: bye") as caught:
        await tools.call("add")
    assert caught.value.retryable


async def never(message: dict[str, Any]) -> None:
    await asyncio.Event().wait()


async def test_a_call_has_a_deadline(deploy: Callable[..., Deployment]):
    server = Server()
    tools = await open_tools([deploy(server)], None)
    server.answers["tools/call"] = never
    with pytest.raises(EpisodeError, match=r"^tool: add didn't answer within 0\.05s, and the episode ended"):
        await tools.call("add", timeout=0.05)


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
async def test_so_has_the_listing(deploy: Callable[..., Deployment], method: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "LIST_TIMEOUT", 0.05)
    server = Server()
    server.answers[method] = never
    with pytest.raises(EpisodeError, match=r"the env 'env' didn't list its tools within 0\.05s") as caught:
        await open_tools([deploy(server)], None)
    assert caught.value.phase == "turn"


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        ({"tools": None}, "holds no list of named tools"),
        ({"tools": [{"description": "no name"}]}, "holds no list of named tools"),
        ({"tools": [TOOL, TOOL]}, "the env 'env' lists the tool 'add' twice"),
        ({"tools": [], "nextCursor": "again"}, "the page 'again' leads back to itself"),
    ],
)
async def test_listings_that_wont_do(deploy: Callable[..., Deployment], listing: dict[str, Any], said: str):
    server = Server()
    server.answers["tools/list"] = listing
    with pytest.raises(EpisodeError, match=said):
        await open_tools([deploy(server)], None)


async def test_a_session_without_an_id_is_not_ended(deploy: Callable[..., Deployment]):
    server = Server()
    server.answers["initialize"] = lambda message: httpx.Response(200, json={"id": message["id"], "result": {}})
    tools = await open_tools([deploy(server)], None)
    await tools.close()
    assert [request.method for request in server.requests] == ["POST"] * 3


async def test_closing_waits_for_no_one_long(deploy: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session, "CLOSE_TIMEOUT", 0.05)
    server = Server()
    env = deploy(server)
    tools = await open_tools([env], None)

    async def stuck(*args: Any, **kwargs: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(env.client, "delete", stuck)
    await tools.close()


async def test_half_a_surrogate_pair_is_refused_and_costs_no_episode(deploy: Callable[..., Deployment]):
    """A model may write any escape into its JSON; its slip is a result it can read, not a lost env."""
    server = Server()
    tools = await open_tools([deploy(server)], None)
    refused = await tools.call("add", {"text": json.loads(r'"\ud83d"')})
    assert refused.failure == "refused"
    assert "can't be sent as JSON" in refused.text
    assert (await tools.call("add", {})).text == "ok"

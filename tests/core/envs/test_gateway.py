"""The one address of an env of several servers, over scripted servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Env, EnvImage
from agent_env_core.envs.card import read_card
from agent_env_core.envs.composed import compose
from agent_env_core.envs.deployment import Deployment
from agent_env_core.envs.gateway import Gateway
from agent_env_core.errors import EpisodeError
from agent_env_core.sandbox.contract import Endpoint

EXTENSION = {"uri": "urn:x/v1", "params": {"endpoint": "/agentenv/ext/x", "methods": {"go": {"endpoint": "/y"}}}}


class Server:
    """One child: a card, two tools named after it, and a data plane; keeps what it was asked."""

    def __init__(self, name: str, *tools: str) -> None:
        self.name = name
        self.tools = tools or (f"{name}_put", f"{name}_hidden")
        self.card = {"name": name, "url": "/agentenv", "capabilities": {"extensions": [EXTENSION]}}
        self.asked: list[httpx.Request] = []
        self.refused = "nobody"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        if request.url.path == "/.well-known/agent-env.json":
            return httpx.Response(200, json=self.card)
        if request.headers.get("AgentEnv-Role") == self.refused:
            return httpx.Response(403)
        if request.url.path != "/mcp":
            return httpx.Response(
                201, json={"by": self.name, "path": request.url.path, "query": request.url.query.decode()}
            )
        message = json.loads(request.content or b"{}")
        if "id" not in message:
            return httpx.Response(202)
        hidden = {"_meta": {"agentenv.io/hiddenByDefault": True}}
        result = {
            "initialize": {"protocolVersion": "2025-06-18"},
            "tools/list": {"tools": [{"name": t, **(hidden if "hidden" in t else {})} for t in self.tools]},
            "tools/call": {
                "content": [{"type": "text", "text": f"{self.name}:{request.headers.get('AgentEnv-Role')}"}]
            },
        }[message["method"]]
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": message["id"], "result": result})

    def deployed(self, client: httpx.AsyncClient) -> Deployment:
        image = EnvImage(ref="docker.io/q")
        env = Env(self.name, self.name, "mcp_server", self.name, "server", image, Path("/q"))
        return Deployment(env, "env", Box(), read_card(self.card), f"http://{self.name}", {"X": "t"}, client)  # type: ignore[arg-type]


class Box:
    """A sandbox that lives."""

    id = "box"

    async def endpoint(self, port: int) -> Endpoint:
        return Endpoint("http://env")


class Whole:
    """An env of scripted servers, opened."""

    def __init__(self, *servers: Server) -> None:
        self.servers = servers
        self.clients = [httpx.AsyncClient(transport=httpx.MockTransport(server)) for server in servers]
        self.http = httpx.AsyncClient(trust_env=False)
        self.gateway: Gateway | None = None

    async def open(self) -> Deployment:
        children = [server.deployed(client) for server, client in zip(self.servers, self.clients, strict=True)]
        one = tuple(child.env for child in children)
        env = Env("W", "whole", "multi", "whole", "gateway", None, Path("/w"), one)
        deployed, self.gateway = await compose(env, "env", children)
        return deployed

    async def close(self) -> None:
        await self.http.aclose()
        if self.gateway is not None:
            await self.gateway.close()
        for client in self.clients:
            await client.aclose()


@pytest.fixture
async def whole() -> Any:
    made = Whole(Server("a"), Server("b"))
    yield made
    await made.close()


async def mcp(whole: Whole, env: Deployment, method: str, role: str = "", **params: Any) -> Any:
    headers = {"AgentEnv-Role": role} if role else {}
    message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    return (await whole.http.post(env.mcp_url, json=message, headers=headers)).json()


async def test_the_card_shows_children_behind_the_gateway(whole: Whole):
    env = await whole.open()
    card = (await whole.http.get(env.base_url + "/.well-known/agent-env.json")).json()
    assert (card["name"], card["capabilities"]["operations"]) == ("whole", [])
    assert [child["name"] for child in card["children_environments"]] == ["a", "b"]
    child = card["children_environments"][1]
    assert child["url"] == "/svc/mcp-b/agentenv"
    params = child["capabilities"]["extensions"][0]["params"]
    assert (params["endpoint"], params["methods"]["go"]["endpoint"]) == ("/svc/mcp-b/agentenv/ext/x", "/svc/mcp-b/y")


async def test_children_are_reached_below_it(whole: Whole):
    env = await whole.open()
    answer = await whole.http.put(env.base_url + "/svc/mcp-b/agentenv/ext/x?a=1", json={"k": 1})
    assert (answer.status_code, answer.json()) == (201, {"by": "b", "path": "/agentenv/ext/x", "query": "a=1"})
    asked = whole.servers[1].asked[-1]
    assert (asked.method, json.loads(asked.content), asked.headers["X"]) == ("PUT", {"k": 1}, "t")
    assert (await whole.http.get(env.base_url + "/svc/mcp-c/x")).status_code == 404


async def test_a_data_plane_is_there_only_with_one_server(whole: Whole):
    env = await whole.open()
    message = {"jsonrpc": "2.0", "id": 7, "method": "data/get", "params": {}}
    answer = (await whole.http.post(env.base_url + "/agentenv", json=message)).json()
    assert (answer["id"], answer["error"]["code"]) == (7, -32000)
    lone = Whole(Server("only"))
    try:
        env = await lone.open()
        answer = await lone.http.post(env.base_url + "/agentenv", json=message)
        assert answer.json()["by"] == "only"
    finally:
        await lone.close()


async def test_tools_are_the_union_under_the_access_rules(whole: Whole):
    env = await whole.open()
    listed = await mcp(whole, env, "tools/list")
    assert [tool["name"] for tool in listed["result"]["tools"]] == ["a_put", "b_put"]
    env.access.change("disable", "default", ["a_put"])
    env.access.change("enable", "boss", ["b_hidden"])
    assert [tool["name"] for tool in (await mcp(whole, env, "tools/list"))["result"]["tools"]] == ["b_put"]
    named = [tool["name"] for tool in (await mcp(whole, env, "tools/list", "boss"))["result"]["tools"]]
    assert named == ["a_put", "b_put", "b_hidden"]
    refused = (await mcp(whole, env, "tools/call", name="a_put"))["result"]
    assert refused["isError"] is True
    assert refused["content"][0]["text"].startswith("permission_denied: the tool 'a_put' is disabled")
    assert (await mcp(whole, env, "tools/call", "boss", name="b_put"))["result"]["content"][0]["text"] == "b:boss"
    assert (await mcp(whole, env, "tools/call", name="b_put"))["result"]["content"][0]["text"] == "b:None"
    assert (await mcp(whole, env, "tools/call", name="c"))["result"]["isError"] is True
    assert (await mcp(whole, env, "resources/list"))["error"]["code"] == -32601


async def test_calls_that_are_none_are_error_results(whole: Whole):
    env = await whole.open()
    for params in ({"name": "b_put", "arguments": [1]}, {"name": 3}, {}):
        assert (await mcp(whole, env, "tools/call", **params))["result"]["isError"] is True
    message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": [1]}
    assert (await whole.http.post(env.mcp_url, json=message)).json()["result"]["isError"] is True


async def test_a_server_that_refuses_a_role_is_an_error_result(whole: Whole):
    env = await whole.open()
    whole.servers[1].refused = "spy"
    answer = (await mcp(whole, env, "tools/call", "spy", name="b_put"))["result"]
    assert answer["isError"] is True
    assert "opening a session in the role 'spy'" in answer["content"][0]["text"]


async def test_nobody_guesses_the_address(whole: Whole):
    env = await whole.open()
    root = env.base_url.rpartition("/")[0]
    assert (await whole.http.get(root + "/.well-known/agent-env.json")).status_code == 404


async def test_bodies_that_are_no_messages(whole: Whole):
    env = await whole.open()
    for body in (b"", b"[1]", b"{", b"[" * 100_000):
        assert (await whole.http.post(env.mcp_url, content=body)).status_code == 202
    assert (await whole.http.get(env.mcp_url)).status_code == 405


async def test_it_is_gone_once_it_is_closed(whole: Whole):
    env = await whole.open()
    assert whole.gateway is not None
    await whole.gateway.close()
    with pytest.raises(httpx.ConnectError):
        await whole.http.get(env.base_url + "/state")


async def test_a_clash_fails_the_deploy_with_both_names():
    clashing = Whole(Server("a", "put"), Server("b", "put"))
    try:
        with pytest.raises(
            EpisodeError, match=r"the env 'whole': the envs 'a' and 'b' both offer a tool 'put'"
        ) as caught:
            await clashing.open()
        assert caught.value.phase == "deploy"
    finally:
        await clashing.close()

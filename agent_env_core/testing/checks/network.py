"""Checks of ports, endpoints and network policies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from agent_env_core.errors import Unsupported
from agent_env_core.sandbox.contract import Endpoint
from agent_env_core.testing.checks.base import ENOUGH, PORT, Skipped, Subject, Trial, eventually, raises, same, true

SUBJECT = Subject("network")

BODY = 4 * 2**20
PAUSE = 2.0
"""Seconds between the two messages of a streamed answer."""

SERVER = """
import http.server, json, os, time
PORT, PAUSE = int(os.environ["KIT_PORT"]), float(os.environ["KIT_PAUSE"])
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def send(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), "Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        known = {"token": os.environ["TOKEN"], "port": os.environ["KIT_PORT"], "path": self.path}
        self.send(json.dumps(known).encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/mcp":
            return self.send(body[::-1])
        asked = json.loads(body)
        if "id" not in asked:
            return self.send(b"", 202)
        if asked["method"] == "initialize":
            info = {"name": "kit", "version": "1"}
            given = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            return self.send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": given}).encode(),
                             Mcp_Session_Id="kit-session")
        if self.headers.get("Mcp-Session-Id") != "kit-session":
            return self.send(b"{}", 404)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        told = {"method": "notifications/message", "params": {"level": "info", "data": "working"}}
        text = asked["params"]["arguments"]["text"]
        answer = {"id": asked["id"], "result": {"content": [{"type": "text", "text": text}], "isError": False}}
        for pause, message in ((0, told), (PAUSE, answer)):
            time.sleep(pause)
            self.wfile.write(b"data: " + json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n\\n")
            self.wfile.flush()
        self.close_connection = True
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
Server((os.environ["KIT_HOST"], PORT), Answer).serve_forever()
"""
"""Answers a GET with what it knows of its environment, a POST with its body backwards, and speaks a little MCP."""


def server(token: str) -> dict[str, Any]:
    """The settings of a sandbox that answers with ``token``."""
    return {
        "command": ("python3", "-c", SERVER),
        "env": {"TOKEN": token, "KIT_HOST": "0.0.0.0", "KIT_PAUSE": str(PAUSE)},
        "ports": (PORT,),
        "port_env": {"KIT_PORT": PORT},
    }


async def ask(endpoint: Endpoint, path: str = "/hello") -> dict[str, str]:
    """What the server answers, as soon as it does."""

    async def once() -> dict[str, str] | None:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            try:
                reply = await client.get(endpoint.url + path, headers=dict(endpoint.headers))
            except httpx.TransportError:
                return None
            return json.loads(reply.text) if reply.status_code == 200 else None

    answer: dict[str, str] = await eventually(once, 60, "an endpoint must reach the main process")
    return answer


async def ready(trial: Trial) -> Endpoint:
    """The endpoint of a new sandbox whose server answers."""
    endpoint = await (await trial.make(**server("one"))).endpoint(PORT)
    await ask(endpoint)
    return endpoint


@SUBJECT.check()
async def an_endpoint_reaches_the_main_process(trial: Trial) -> None:
    box = await trial.make(**server("one"))
    answer = await ask(await box.endpoint(PORT), "/hello?a=b%20c")
    same((answer["token"], answer["path"]), ("one", "/hello?a=b%20c"))


@SUBJECT.check(boxes=4)
async def sandboxes_with_one_port_dont_meet(trial: Trial) -> None:
    made = await asyncio.gather(*(trial.make(**server(f"box {number}")) for number in range(4)))
    endpoints = await asyncio.gather(*(box.endpoint(PORT) for box in made))
    same(len({(end.url, tuple(sorted(end.headers.items()))) for end in endpoints}), 4, "different endpoints")
    answers = await asyncio.gather(*(ask(end) for end in endpoints))
    same([answer["token"] for answer in answers], [f"box {number}" for number in range(4)])


@SUBJECT.check()
async def an_attached_sandbox_has_the_same_endpoint(trial: Trial) -> None:
    box = await trial.make(**server("one"))
    again = await trial.provider.attach(box.id)
    same((await ask(await again.endpoint(PORT)))["token"], "one")


@SUBJECT.check()
async def an_endpoint_has_no_slash_behind_it(trial: Trial) -> None:
    url = (await (await trial.make(**server("one"))).endpoint(PORT)).url
    true(url.startswith(("http://", "https://")) and not url.endswith("/"), f"{url!r} is no base URL")


@SUBJECT.check()
async def a_port_that_was_not_named_has_no_endpoint(trial: Trial) -> None:
    box = await trial.make(**server("one"))
    with raises(Unsupported):
        await box.endpoint(PORT + 1)


@SUBJECT.check()
async def bodies_of_megabytes_pass_an_endpoint(trial: Trial) -> None:
    endpoint = await ready(trial)
    body = bytes(range(256)) * (BODY // 256)
    async with httpx.AsyncClient(timeout=ENOUGH, trust_env=False) as client:
        reply = await client.post(f"{endpoint.url}/turn", content=body, headers=dict(endpoint.headers))
    same((reply.status_code, len(reply.content)), (200, len(body)), "status and bytes of the answer")
    true(reply.content == body[::-1], "the answer's body came back changed")


@SUBJECT.check()
async def an_endpoint_takes_many_requests_at_once(trial: Trial) -> None:
    endpoint = await ready(trial)
    async with httpx.AsyncClient(timeout=ENOUGH, trust_env=False, headers=dict(endpoint.headers)) as client:
        replies = await asyncio.gather(*(client.get(f"{endpoint.url}/{number}") for number in range(32)))
    same([reply.json()["path"] for reply in replies], [f"/{number}" for number in range(32)])


@SUBJECT.check()
async def an_mcp_session_passes_an_endpoint_message_by_message(trial: Trial) -> None:
    endpoint = await ready(trial)
    accepts = {"Accept": "application/json, text/event-stream", **endpoint.headers}
    call = {"name": "echo", "arguments": {"text": "grüß"}}
    client_info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "kit", "version": "1"}}
    async with httpx.AsyncClient(timeout=ENOUGH, trust_env=False, headers=accepts) as client:
        post = _mcp(client, f"{endpoint.url}/mcp")
        opened = await post("initialize", client_info, id=1)
        session = opened.headers.get("Mcp-Session-Id")
        same((opened.status_code, session), (200, "kit-session"), "status and session of `initialize`")
        client.headers["Mcp-Session-Id"] = session or ""
        same((await post("notifications/initialized", {})).status_code, 202, "status of a notification")
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        messages, times, loop = [], [], asyncio.get_running_loop()
        async with client.stream("POST", f"{endpoint.url}/mcp", json=asked) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    messages.append(json.loads(line[6:]))
                    times.append(loop.time())
    same([message.get("method") for message in messages], ["notifications/message", None], "messages of one answer")
    same(messages[1]["result"]["content"][0]["text"], "grüß")
    true(times[1] - times[0] > PAUSE / 2, "a streamed answer was held back until it was complete")


def _mcp(client: httpx.AsyncClient, url: str) -> Callable[..., Awaitable[httpx.Response]]:
    async def post(method: str, params: dict[str, Any], **more: Any) -> httpx.Response:
        return await client.post(url, json={"jsonrpc": "2.0", "method": method, "params": params, **more})

    return post


REACH = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
except OSError as exc:
    print(exc)
else:
    print("reached")
"""


@SUBJECT.check()
async def no_network_means_none_where_that_is_claimed(trial: Trial) -> None:
    if "none" not in trial.can.network:
        raise Skipped("the provider doesn't claim to cut the network off")
    box = await trial.make(network="none")
    done = await box.exec(["python3", "-c", REACH, "192.0.2.1", "80"], timeout=ENOUGH)
    true(b"nreachable" in done.stdout, f"there must be no way out at all, not a slow one: {done.stdout!r}")


@SUBJECT.check()
async def an_allow_list_lets_nothing_else_through_where_it_is_claimed(trial: Trial) -> None:
    if "allow" not in trial.can.network:
        raise Skipped("the provider claims no allow-lists")
    box = await trial.make(network=("example.org",))
    for place, port in (("169.254.169.254", "80"), ("1.1.1.1", "443"), ("example.com", "443")):
        done = await box.exec(["python3", "-c", REACH, place, port], timeout=ENOUGH)
        true(done.stdout.strip() != b"reached", f"{place}:{port} was reached past an allow-list")

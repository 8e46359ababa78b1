"""Checks of ports, endpoints and network policies."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from agent_env_core.errors import Unsupported
from agent_env_core.sandbox.contract import Endpoint
from agent_env_core.testing.checks.base import PORT, Boxes, Kit, eventually
from agent_env_core.testing.checks.commands import ENOUGH

#: Answers every request with what it knows of its environment.
SERVER = """
import http.server, json, os
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"token": os.environ["TOKEN"], "port": os.environ["KIT_PORT"], "path": self.path}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer((os.environ["KIT_HOST"], int(os.environ["KIT_PORT"])), Answer).serve_forever()
"""


def server(token: str) -> dict[str, object]:
    """The settings of a sandbox that answers with ``token``."""
    return {
        "command": ("python3", "-c", SERVER),
        "env": {"TOKEN": token, "KIT_HOST": "0.0.0.0"},
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

    answer: dict[str, str] = await eventually(once, 60)
    return answer


class NetworkChecks(Kit):
    """Ports, endpoints, policies."""

    async def test_an_endpoint_reaches_the_main_process(self, boxes: Boxes) -> None:
        box = await boxes.make(**server("one"))
        answer = await ask(await box.endpoint(PORT))
        assert (answer["token"], answer["path"]) == ("one", "/hello")

    async def test_sandboxes_with_one_port_dont_meet(self, boxes: Boxes) -> None:
        made = await asyncio.gather(*(boxes.make(**server(f"box {number}")) for number in range(4)))
        endpoints = await asyncio.gather(*(box.endpoint(PORT) for box in made))
        assert len({(end.url, tuple(sorted(end.headers.items()))) for end in endpoints}) == 4
        answers = await asyncio.gather(*(ask(end) for end in endpoints))
        assert [answer["token"] for answer in answers] == [f"box {number}" for number in range(4)]

    async def test_an_attached_sandbox_has_the_same_endpoint(self, boxes: Boxes) -> None:
        box = await boxes.make(**server("one"))
        again = await boxes.provider.attach(box.id)
        assert (await ask(await again.endpoint(PORT)))["token"] == "one"

    async def test_an_endpoint_has_no_slash_behind_it(self, boxes: Boxes) -> None:
        box = await boxes.make(**server("one"))
        url = (await box.endpoint(PORT)).url
        assert url.startswith(("http://", "https://"))
        assert not url.endswith("/")

    async def test_a_port_that_was_not_named_has_no_endpoint(self, boxes: Boxes) -> None:
        box = await boxes.make(**server("one"))
        with pytest.raises(Unsupported):
            await box.endpoint(PORT + 1)

    async def test_a_variable_for_a_port_that_was_not_named_is_refused(self, boxes: Boxes) -> None:
        with pytest.raises(Unsupported, match="18081"):
            await boxes.make(ports=(PORT,), port_env={"KIT_PORT": PORT, "OTHER": PORT + 1})
        assert await boxes.listed() == {}

    async def test_no_network_means_none_where_that_is_claimed(self, boxes: Boxes) -> None:
        if "none" not in boxes.provider.capabilities.network:
            with pytest.raises(Unsupported, match="none"):
                await boxes.make(network="none")
            assert await boxes.listed() == {}
            return
        box = await boxes.make(network="none")
        reach = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
        done = await box.exec(["python3", "-c", reach], timeout=ENOUGH)
        assert done.exit_code != 0
        assert b"nreachable" in done.stderr, "there must be no way out at all, not a slow one"

    async def test_an_allow_list_is_refused_where_it_is_not_claimed(self, boxes: Boxes) -> None:
        if "allow" in boxes.provider.capabilities.network:
            pytest.skip("the provider claims allow-lists")
        with pytest.raises(Unsupported, match=r"example\.org"):
            await boxes.make(network=("example.org",))
        assert await boxes.listed() == {}

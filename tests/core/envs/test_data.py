"""The data plane, over a scripted server and sandbox."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Env, EnvImage
from agent_env_core.envs import data
from agent_env_core.envs.card import read_card
from agent_env_core.envs.data import Seed
from agent_env_core.envs.deployment import Deployment
from agent_env_core.errors import EpisodeError, Gone
from agent_env_core.sandbox.contract import Endpoint, ExecResult


class Box:
    """A sandbox that keeps files, and sees ``/data`` where ``seen`` says."""

    id = "box"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.seen = ExecResult(0, b"/data\n", b"")
        self.broken: Exception | None = None

    async def write(self, path: str, content: bytes) -> None:
        if self.broken:
            raise self.broken
        self.files[path] = content

    async def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def exec(self, argv: list[str], **options: Any) -> ExecResult:
        assert (argv[0], options["cwd"]) == ("pwd", "/data")
        return self.seen

    async def endpoint(self, port: int) -> Endpoint:
        return Endpoint("http://env")


class Plane:
    """A server's data plane with scripted answers; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.parts: Any = []
        self.answer: httpx.Response | None = None
        self.box = Box()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert (request.url.path, request.headers["X-Token"]) == ("/agentenv", "t")
        message = json.loads(request.content)
        self.asked.append((message["method"], message["params"]))
        result = {"parts": self.parts} if message["method"] == "data/get" else {}
        return self.answer or httpx.Response(200, json={"jsonrpc": "2.0", "id": 1, "result": result})

    def server(self, client: httpx.AsyncClient) -> Deployment:
        env = Env("E", "quay", "mcp_server", "quay", "server", EnvImage(ref="docker.io/q"), Path("/q"))
        card = read_card({"name": "quay"})
        return Deployment(env, "env", self.box, card, "http://env", {"X-Token": "t"}, client)  # type: ignore[arg-type]


@pytest.fixture
def plane() -> Plane:
    return Plane()


@pytest.fixture
async def server(plane: Plane) -> Any:
    async with httpx.AsyncClient(transport=httpx.MockTransport(plane)) as client:
        yield plane.server(client)


@pytest.mark.parametrize(
    ("seen", "address"),
    [
        (ExecResult(0, b"/data\n", b""), "file:///data/in%20box.json"),
        (ExecResult(0, b"/home/me/root/data\n", b""), "file:///home/me/root/data/in%20box.json"),  # no root of its own
        (ExecResult(127, b"", b"no pwd"), "file:///data/in%20box.json"),
        (ExecResult(0, b"what\n", b""), "file:///data/in%20box.json"),
    ],
)
async def test_a_seed_is_staged_and_named_by_its_address(
    plane: Plane, server: Deployment, seen: ExecResult, address: str
):
    plane.box.seen = seen
    await data.load(server, Seed("in box.json", b"{}"))
    assert plane.box.files == {"/data/in box.json": b"{}"}
    part = {"kind": "file", "file": {"uri": address, "name": "in box.json"}}
    assert plane.asked == [("data/reset", {}), ("data/add", {"parts": [part]})]


def test_loading_may_take_longer_the_more_there_is():
    class Large(bytes):
        def __len__(self) -> int:
            return 10**9

    assert Seed("a", b"").timeout == 900
    assert Seed("a", Large()).timeout == 2100
    Large.__len__ = lambda self: 10**12  # type: ignore[method-assign]
    assert Seed("a", Large()).timeout == 3600


@pytest.mark.parametrize("broken", [Gone("it ended"), PermissionError("no")])
async def test_a_seed_that_can_not_be_staged(plane: Plane, server: Deployment, broken: Exception):
    plane.box.broken = broken
    with pytest.raises(EpisodeError, match=r"/data/a can't be written in the sandbox of the env 'quay'") as caught:
        await data.load(server, Seed("a", b""))
    assert caught.value.retryable is isinstance(broken, Gone)
    assert plane.asked == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            {"error": {"code": -32000, "message": "full", "data": {"code": "add_failed"}}},
            "failed: full (code add_failed)",
        ),
        ({"error": {"code": -32601, "message": "method not found"}}, "failed: method not found (code -32601)"),
        ({"error": "odd"}, "failed: odd"),
        ({}, "neither a result nor an error"),
        ([], "neither a result nor an error"),
        (None, "what is not JSON"),
    ],
)
async def test_answers_that_are_none(plane: Plane, server: Deployment, answer: Any, said: str):
    plane.answer = httpx.Response(200, text="<html>") if answer is None else httpx.Response(200, json=answer)
    with pytest.raises(EpisodeError) as caught:
        await data.reset(server)
    assert said in caught.value.reason
    assert caught.value.reason.startswith("data/reset of the env 'quay'")


async def test_an_http_error_holds_the_servers_words(plane: Plane, server: Deployment):
    plane.answer = httpx.Response(500, text="Traceback: disk")
    with pytest.raises(EpisodeError, match="data/reset of the env 'quay' answered 500: Traceback: disk"):
        await data.reset(server)


FILE = {"kind": "file", "file": {"uri": "file:///var/out%20box.zip"}}


@pytest.mark.parametrize(
    ("parts", "seed"),
    [
        ([], None),
        ([{"kind": "data", "data": {"a": 1}}], Seed("quay.json", b'{"a": 1}')),
        ([{"kind": "text", "text": "hi"}], Seed("quay.txt", b"hi")),
        ([{"kind": "file", "file": {"bytes": base64.b64encode(b"x").decode(), "name": "d/y"}}], Seed("y", b"x")),
        ([FILE], Seed("out box.zip", b"zip")),
        ([{"kind": "file", "file": {"bytes": "", "name": "d/.."}}], Seed("quay.bin", b"")),
        ([{"kind": "text"}] * 2, Seed("quay.json", b'{"parts": [{"kind": "text"}, {"kind": "text"}]}')),
    ],
)
async def test_an_export_is_a_seed(plane: Plane, server: Deployment, parts: Any, seed: Seed | None):
    plane.parts = parts
    plane.box.files["/var/out box.zip"] = b"zip"
    assert await data.export(server, timeout=5) == seed


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (None, "no list of parts"),
        (["x"], "no list of parts"),
        ([FILE], "a file that can't be read"),
        ([{"kind": "file", "file": {"uri": "https://x/y"}}], "a file at 'https://x/y'; only file:// can be read"),
        ([{"kind": "file"}], "a file at ''"),
        ([{"kind": "file", "file": {"bytes": "!"}}], "no base64"),
    ],
)
async def test_exports_that_can_not_be_kept(plane: Plane, server: Deployment, parts: Any, said: str):
    plane.parts = parts
    with pytest.raises(EpisodeError, match="data/get of the env 'quay' answered with") as caught:
        await data.export(server, timeout=5)
    assert said in caught.value.reason


async def test_an_answer_is_read_within_a_bound(plane: Plane, server: Deployment, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data, "MAX_EXPORT", 1 << 20)
    plane.parts = [{"kind": "text", "text": "x" * (2 << 20)}]
    with pytest.raises(
        EpisodeError, match="the answer of data/get of the env 'quay' can't be read: it is larger than 1 MiB"
    ):
        await data.export(server, timeout=5)


def test_what_a_card_says_is_served(plane: Plane):
    served: Callable[..., bool] = data.serves
    server = plane.server(None)  # type: ignore[arg-type]
    server.card = read_card({"name": "q", "capabilities": {"operations": ["data/get"]}})
    assert served(server, "data/get")
    assert not served(server, "data/reset")

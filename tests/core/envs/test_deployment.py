"""Deploying an env, over a scripted sandbox and a scripted server: readiness, deaths, what a sandbox is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Env, EnvImage
from agent_env_core.envs import deployment as module
from agent_env_core.envs.card import Method
from agent_env_core.envs.deployment import Deployment, DeployOptions, deploy, sandbox_spec
from agent_env_core.envs.http import HttpClients
from agent_env_core.envs.images import PreparedImage, prepare_image
from agent_env_core.errors import Busy, EpisodeError, Gone, ImageError, Unsupported
from agent_env_core.sandbox.contract import Capabilities, Endpoint, Image, SandboxSpec

CARD = {"name": "quay", "additionalInterfaces": [{"url": "/tools", "transport": "mcp"}]}
OPTIONS = DeployOptions(ttl=60.0)
PREPARED = PreparedImage("ref", ("serve",))


def env(**fields: Any) -> Env:
    image = {"name": "q", "environment_name": "quay", "env_provider_type": "gateway", **fields}
    return Env("@local/q", type="mcp_server", **{"image": EnvImage(ref="docker.io/q"), "path": Path("/q"), **image})


class Host:
    """A sandbox host, its provider and its only sandbox in one.

    Attributes:
        gone: Why the sandbox ended, once it has.
        creating: What ``create`` does beyond creating.
    """

    id = "box"
    name = "scripted"

    def __init__(self) -> None:
        self.capabilities = Capabilities(isolation="container", refs=True)
        self.gone = ""
        self.creating: Callable[[], Any] = lambda: None
        self.created: list[SandboxSpec] = []
        self.destroyed: list[str] = []
        self.prepared: list[Image] = []

    @property
    def provider(self) -> Host:
        return self

    async def prepare(self, image: Image) -> str:
        self.prepared.append(image)
        return "ref"

    async def create(self, spec: SandboxSpec, *, place: object = None) -> Host:
        self.created.append(spec)
        if asyncio.iscoroutine(waiting := self.creating()):
            await waiting
        return self

    async def destroy(self, sandbox_id: str) -> bool:
        self.destroyed.append(sandbox_id)
        return True

    async def endpoint(self, port: int) -> Endpoint:
        assert port == 18765
        if self.gone:
            raise Gone(self.gone)
        return Endpoint("http://box:1", {"X-Token": "t"})


@pytest.fixture
def host() -> Host:
    return Host()


Serve = Callable[[Callable[[httpx.Request], httpx.Response]], httpx.AsyncClient]


@pytest.fixture
async def serve() -> Any:
    """An HTTP client that a function answers."""
    clients: list[httpx.AsyncClient] = []

    def make(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.AsyncClient:
        clients.append(httpx.AsyncClient(transport=httpx.MockTransport(answer)))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


async def deployed(host: Host, client: httpx.AsyncClient, **options: Any) -> Deployment:
    return await deploy(env(), PREPARED, host, client, step_id="env", options=OPTIONS, **options)  # type: ignore[arg-type]


async def test_it_is_ready_when_its_card_answers(host: Host, serve: Serve, monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    tries: Iterator[Any] = iter([httpx.ConnectError("no"), httpx.ReadError("no"), 404, 502, 200])

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.path, request.headers["X-Token"]) == ("/.well-known/agent-env.json", "t")
        outcome = next(tries)
        if isinstance(outcome, Exception):
            raise outcome
        return httpx.Response(outcome, json=CARD)

    monkeypatch.setattr(module.asyncio, "sleep", pause)
    found = await deployed(host, serve(answer))
    assert pauses == pytest.approx([0.01, 0.012, 0.0144, 0.01728])
    assert (found.base_url, found.mcp_url, found.headers) == ("http://box:1", "http://box:1/tools", {"X-Token": "t"})
    assert host.destroyed == []


async def test_waiting_backs_off_to_a_quarter_of_a_second(host: Host, serve: Serve, monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(module.asyncio, "sleep", pause)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with pytest.raises(
        EpisodeError, match=r"the env 'q' wasn't ready within 10s, .*its card answered HTTP 503"
    ) as caught:
        await deployed(host, serve(lambda request: httpx.Response(503)), ready_timeout=10.0)
    assert (caught.value.phase, caught.value.retryable) == ("deploy", True)
    assert max(pauses) == 0.25
    assert 9.5 < sum(pauses) <= 10
    assert host.destroyed == ["box"]


async def test_a_server_that_ended_is_noticed_while_it_is_waited_for(host: Host, serve: Serve):
    def answer(request: httpx.Request) -> httpx.Response:
        host.gone = "exited with code 1; it last said: no module named quay"
        raise httpx.ConnectError("refused")

    with pytest.raises(EpisodeError, match=r"the env 'q' ended before it was ready: .*no module named quay"):
        await deployed(host, serve(answer))
    assert host.destroyed == ["box"]


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({"name": "other"}, "the env 'q' should be 'quay', and its card says 'other': set environment_name"),
        ({}, "the env 'q' has a card that can't be read: the card's name is None"),
        ([], "has a card that can't be read"),
    ],
)
async def test_a_card_that_wont_do(host: Host, serve: Serve, card: Any, said: str):
    with pytest.raises(EpisodeError, match=said):
        await deployed(host, serve(lambda request: httpx.Response(200, json=card)))
    assert host.destroyed == ["box"]


@pytest.mark.parametrize(
    ("error", "retryable"), [(Busy("no room"), True), (Unsupported("no GPU"), False), (Gone("evicted"), True)]
)
async def test_no_sandbox_to_be_had(host: Host, serve: Serve, error: Exception, retryable: bool):
    def fail() -> None:
        raise error

    host.creating = fail
    with pytest.raises(EpisodeError, match=str(error)) as caught:
        await deployed(host, serve(lambda request: httpx.Response(200)))
    assert (caught.value.phase, caught.value.retryable) == ("deploy", retryable)
    assert host.destroyed == []


async def test_cancelled_while_it_is_waited_for(host: Host, serve: Serve):
    asked = asyncio.Event()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.set()
        return httpx.Response(503)

    deploying = asyncio.create_task(deployed(host, serve(answer)))
    await asked.wait()
    deploying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deploying
    assert host.destroyed == ["box"]


def test_what_a_sandbox_is_asked_for():
    spec = sandbox_spec(env(), PREPARED, DeployOptions(ttl=60.0, cpu=2.0, memory_mb=512))
    assert (spec.image, spec.command, spec.ttl, spec.cpu, spec.memory_mb) == ("ref", ("serve",), 60.0, 2.0, 512)
    assert spec.env == {"MCP_HOST": "0.0.0.0", "ENVIRONMENT_NAME": "quay", "SERVICE_NAME": "quay"}
    assert (spec.ports, spec.port_env) == ((18765,), {"MCP_PORT": 18765})
    assert spec.labels == {"agent-env.env": "q"}


def test_a_server_without_gateway_gets_a_database_of_its_own_where_files_are_private():
    direct = env(env_provider_type="server")
    assert sandbox_spec(direct, PREPARED, OPTIONS).env["DATABASE_URL"] == "sqlite:////tmp/quay.sqlite"
    assert "DATABASE_URL" not in sandbox_spec(direct, PREPARED, OPTIONS, private_files=False).env


async def test_the_command_comes_from_the_dockerfile(host: Host, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text('FROM x\nENTRYPOINT ["python"]\nCMD ["server.py"]\n')
    prepared = await prepare_image(env(image=EnvImage(context=tmp_path)), host)  # type: ignore[arg-type]
    assert prepared == PreparedImage("ref", ("python", "server.py"))
    assert host.prepared == [Image(context=tmp_path)]


async def test_or_from_the_provider(host: Host):
    async def image_command(prepared: str) -> tuple[str, ...]:
        assert prepared == "ref"
        return ("from", "the", "image")

    host.image_command = image_command  # type: ignore[attr-defined]
    assert (await prepare_image(env(), host)).command == ("from", "the", "image")  # type: ignore[arg-type]


async def test_or_there_is_none(host: Host, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    for image, named in ((EnvImage(context=tmp_path), "its Dockerfile"), (EnvImage(ref="docker.io/q"), "docker.io/q")):
        with pytest.raises(ImageError, match=f"the env 'q': nothing says how its server is started: .*{named}.*CMD"):
            await prepare_image(env(image=image), host)  # type: ignore[arg-type]


@pytest.fixture
async def quay(host: Host, serve: Serve) -> Callable[..., Any]:
    """A deployment whose extension calls are answered so."""

    async def make(answer: Callable[[httpx.Request], httpx.Response]) -> Deployment:
        found = await deployed(host, serve(lambda request: httpx.Response(200, json=CARD)))
        found.client = serve(answer)
        return found

    return make


@pytest.mark.parametrize(
    ("verb", "query", "body"), [("POST", "", b'{"a":1}'), ("PUT", "", b'{"a":1}'), ("GET", "a=1", b"")]
)
async def test_extensions_are_called_as_the_card_says(quay: Callable[..., Any], verb: str, query: str, body: bytes):
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"loaded": True})

    env = await quay(answer)
    assert await env.call_extension(Method("load", verb, "/ext"), {"a": 1}, timeout=5) == {"loaded": True}
    (request,) = seen
    assert (request.method, request.url.path, request.url.query.decode()) == (verb, "/ext", query)
    assert json.loads(request.content or b"0") == (json.loads(body) if body else 0)
    assert request.headers["X-Token"] == "t"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(400, json={"error": {"message": "no such scenario"}}), "answered 400: .*no such scenario"),
        (httpx.Response(500, text="Traceback\n  boom"), "POST /ext of the env 'q' answered 500: Traceback boom"),
        (httpx.Response(200, text="<html>"), "answered with what is not JSON"),
        (httpx.Response(200, content=b"x" * (9 << 20)), "it is larger than 8 MiB"),
    ],
)
async def test_extension_calls_that_fail(quay: Callable[..., Any], answer: httpx.Response, said: str):
    env = await quay(lambda request: answer)
    with pytest.raises(EpisodeError, match=said) as caught:
        await env.call_extension(Method("load", "POST", "/ext"), {}, timeout=5)
    assert caught.value.phase == "setup"


async def test_an_empty_answer_is_an_empty_object(quay: Callable[..., Any]):
    env = await quay(lambda request: httpx.Response(204))
    assert await env.call_extension(Method("load", "POST", "/ext"), {}, timeout=5) == {}


async def test_an_extension_that_hangs_and_one_that_is_gone(quay: Callable[..., Any], host: Host):
    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    env = await quay(hang)
    with pytest.raises(EpisodeError, match=r"POST /ext of the env 'q' didn't answer within 0\.05s") as caught:
        await env.call_extension(Method("load", "POST", "/ext"), {}, timeout=0.05)
    assert caught.value.retryable

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    env = await quay(refuse)
    host.gone = "killed"
    with pytest.raises(EpisodeError, match="POST /ext of the env 'q': the env 'q' ended: killed"):
        await env.call_extension(Method("load", "POST", "/ext"), {}, timeout=5)


@pytest.mark.parametrize(
    ("location", "followed"),
    [
        ("/mcp/", True),
        ("https://env.example/mcp/", True),
        ("http://env.example:8080/mcp/", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("//elsewhere.example/mcp", False),
    ],
)
async def test_an_env_may_redirect_to_itself_alone(location: str, followed: bool):
    """What runs in a sandbox must not send our requests, and the headers on them, wherever it likes."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200) if len(asked) > 1 else httpx.Response(307, headers={"Location": location})

    async with HttpClients().open() as client:
        client._transport = httpx.MockTransport(answer)
        if followed:
            assert (await client.post("http://env.example/mcp")).status_code == 200
        else:
            with pytest.raises(httpx.RemoteProtocolError, match="redirects to another address"):
                await client.post("http://env.example/mcp")
    assert len(asked) == 1 + followed


async def test_a_card_is_read_within_a_bound(host: Host, serve: Serve):
    with pytest.raises(EpisodeError, match=r"the env 'q' has a card that can't be read: it is larger than 4 MiB"):
        await deployed(host, serve(lambda request: httpx.Response(200, content=b"x" * (5 << 20))))
    assert host.destroyed == ["box"]


async def test_a_card_that_never_ends_is_given_up(host: Host, serve: Serve, monkeypatch: pytest.MonkeyPatch):
    class Trickle(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            while True:
                yield b" "
                await asyncio.sleep(0.001)

    monkeypatch.setattr(module, "TRY_TIMEOUT", 0.05)
    with pytest.raises(EpisodeError, match=r"wasn't ready within 0.1s, .*its card didn't answer within 0.05s"):
        await deployed(host, serve(lambda request: httpx.Response(200, stream=Trickle())), ready_timeout=0.1)

"""The conformance kit, on a real engine."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ClassVar

import pytest
from agent_env_docker.provider import DockerProvider
from agent_env_docker.settings import Settings

from agent_env_core.sandbox.contract import Image
from agent_env_core.sandbox.leases import OWNER_LABEL, Owner
from agent_env_core.testing.checks.base import Fault, Outside
from agent_env_core.testing.sandbox import SandboxConformance


class Remembering(DockerProvider):
    """Remembers what it built, for removal."""

    built: ClassVar[set[str]] = set()

    async def prepare(self, image: Image) -> str:
        prepared = await super().prepare(image)
        if image.context is not None:
            self.built.add(prepared)
        return prepared


@pytest.fixture(scope="module", autouse=True)
def images_are_removed() -> Iterator[None]:
    yield
    if not Remembering.built:  # no engine, so all was skipped
        return
    import docker

    client = docker.from_env()
    for tag in Remembering.built:
        client.api.remove_image(tag, force=True)
    client.close()


class Wire:
    """The way to the engine, where a call can be answered in the engine's place.

    Attributes:
        answer: What to say to the calls that ``strikes`` names, instead of asking the engine; None asks it.
        after: The engine is asked first, and the answer comes in place of its own.
    """

    def __init__(self) -> None:
        self.answer: tuple[int, str] | None = None
        self.strikes: Callable[[Any], bool] = lambda request: True
        self.after = False

    @contextmanager
    def failing(
        self, answer: tuple[int, str], strikes: Callable[[Any], bool], *, after: bool = False
    ) -> Iterator[None]:
        self.answer, self.strikes, self.after = answer, strikes, after
        try:
            yield
        finally:
            self.answer = None

    def send(self, send: Callable[..., Any], client: Any, request: Any, **more: Any) -> Any:
        """Stands for ``requests.Session.send`` of the SDK's client."""
        import requests

        answer = self.answer if self.strikes(request) else None
        if answer is None or self.after:
            real = send(client, request, **more)
            if answer is None:
                return real
        response = requests.Response()
        response.status_code, text = answer
        response.url, response.request = request.url, request
        response.headers["Content-Type"] = "application/json"
        response.raw = io.BytesIO(json.dumps({"message": text}).encode())
        return response


@pytest.mark.docker
class TestDocker(SandboxConformance):
    @pytest.fixture
    async def provider(self, wire: Wire) -> AsyncIterator[DockerProvider]:
        provider = Remembering(Settings(builder="classic", bytecode=False))  # what every engine can do
        yield provider
        await provider.aclose()

    @pytest.fixture
    def wire(self, monkeypatch: pytest.MonkeyPatch) -> Wire:
        import docker

        wire, send = Wire(), docker.APIClient.send
        monkeypatch.setattr(docker.APIClient, "send", lambda *args, **more: wire.send(send, *args, **more))
        return wire

    @pytest.fixture
    def outside(self) -> Outside:
        """Asks the command line for containers in any state."""

        async def look(labels: Mapping[str, str]) -> Collection[str]:
            filters = [part for key, value in labels.items() for part in ("--filter", f"label={key}={value}")]
            argv = ("docker", "ps", "--all", "--no-trunc", "--quiet", *filters)
            asked = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
            said, _ = await asked.communicate()
            assert asked.returncode == 0, argv
            return said.decode().split()

        return look

    @pytest.fixture
    def faults(self, wire: Wire, provider: DockerProvider, outside: Outside, engine: Any) -> Mapping[str, Fault]:
        def making(request: Any) -> bool:
            return request.method == "POST" and "/containers/create" in request.url

        def failing(answer: tuple[int, str], strikes: Callable[[Any], bool], *, after: bool = False) -> Fault:
            @asynccontextmanager
            async def fault() -> AsyncIterator[DockerProvider]:
                with wire.failing(answer, strikes, after=after):
                    yield provider

            return fault

        @asynccontextmanager
        async def evicted() -> AsyncIterator[DockerProvider]:
            for id in await outside({OWNER_LABEL: str(Owner.current())}):
                engine.api.kill(id)
            yield provider

        return {
            "config": failing((403, "authorization denied by plugin"), lambda request: True),
            "busy": failing((500, "OCI runtime create failed: cannot allocate memory"), making),
            "unavailable": failing((503, "the engine is going down"), lambda request: True),
            "lost": failing((502, "bad gateway"), lambda request: request.method == "POST", after=True),
            "evicted": evicted,
        }

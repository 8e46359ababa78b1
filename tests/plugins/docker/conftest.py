"""What the Docker tests share: a provider, a label for each test, and a look at the engine from outside."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env_docker.provider import DockerProvider, DockerSandbox
from agent_env_docker.settings import Settings

from agent_env_core.sandbox.contract import Image, SandboxSpec

BASE = "python:3.11-slim"
PLAIN = Settings(builder="classic", bytecode=False)
"""What every engine can do, without the seconds that compiling takes."""


@pytest.fixture
def engine() -> Iterator[Any]:
    """A client that shares nothing with the provider."""
    import docker

    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture
def label() -> dict[str, str]:
    return {"agent-env-test": uuid.uuid4().hex[:12]}


@pytest.fixture
def leftovers(engine: Any, label: dict[str, str]) -> Callable[[], list[str]]:
    """The containers of this test, running or not."""
    wanted = [f"{key}={value}" for key, value in label.items()]
    return lambda: [entry["Id"] for entry in engine.api.containers(all=True, filters={"label": wanted})]


@pytest.fixture
async def provider(engine: Any, leftovers: Callable[[], list[str]]) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider(PLAIN)
    yield provider
    _remove(engine, leftovers())
    await provider.aclose()


def _remove(engine: Any, containers: list[str]) -> None:
    for container in containers:
        engine.api.remove_container(container, force=True, v=True)


@pytest.fixture
async def base(provider: DockerProvider) -> str:
    return await provider.prepare(Image(ref=BASE))


@pytest.fixture
def make(provider: DockerProvider, base: str, label: dict[str, str]) -> Callable[..., Awaitable[DockerSandbox]]:
    """Makes a sandbox: ``await make(command=..., ports=...)``."""

    async def make(image: str = base, **fields: Any) -> DockerSandbox:
        return await provider.create(SandboxSpec(**{"image": image, "ttl": 120.0, "labels": label, **fields}))

    return make


@pytest.fixture
def context(tmp_path: Path, engine: Any, leftovers: Callable[[], list[str]]) -> Iterator[Callable[..., Path]]:
    """Makes build contexts with names of their own, and removes the images that were built from them."""
    slug = f"t-{uuid.uuid4().hex[:8]}"
    folder = tmp_path / slug
    folder.mkdir()

    def write(dockerfile: str, **files: str) -> Path:
        (folder / "Dockerfile").write_text(dockerfile)
        for name, text in files.items():
            (folder / name).write_text(text)
        return folder

    yield write
    _remove(engine, leftovers())
    for image in engine.api.images(name=f"agent-env/{slug}"):
        for tag in image["RepoTags"]:  # by name: another build may have gone on from the same content
            engine.api.remove_image(tag, force=True)

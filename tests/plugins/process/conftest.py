from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_env_process.isolation import choose
from agent_env_process.provider import ProcessProvider

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox.contract import Image, SandboxSpec


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("process-cache")


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """Reapers write their log here, not among this user's own files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def isolation(request):
    """The best there is here; a test names another one by parametrizing this indirectly."""
    return getattr(request, "param", "auto")


@pytest.fixture
def config(cache_dir, tmp_path, isolation):
    """Settings of a provider that touches nothing of this user's own."""
    return {"cache_dir": str(cache_dir), "state_dir": str(tmp_path / "state"), "isolation": isolation}


@pytest.fixture
async def provider(config):
    provider = ProcessProvider(config)
    yield provider
    await provider.aclose()


@pytest.fixture
def context() -> Callable[..., Image]:
    """Writes a build context; a double underscore in a file's name stands for the dot."""

    def write(folder: Path, dockerfile: str, **files: str) -> Image:
        (folder / "Dockerfile").write_text(dockerfile)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return Image(context=folder)

    return write


@pytest.fixture(scope="session")
def allowed() -> Callable[[str], None]:
    """Skips the test where this machine doesn't allow an isolation; in CI, that it should is not left to chance."""

    def check(isolation: str) -> None:
        try:
            choose(isolation)
        except ConfigError as exc:
            if os.environ.get("CI") == "true":
                pytest.fail(str(exc), pytrace=False)
            pytest.skip(str(exc))

    return check


@pytest.fixture
async def image(provider, tmp_path, context):
    """An image with a file, a variable and a program of its own."""
    folder = tmp_path / "context"
    folder.mkdir()
    lines = (
        "FROM python:3.11-slim",
        "WORKDIR /app",
        "ENV DATA=/app/data",
        "COPY hello.txt data/",
        "COPY --chmod=755 hi",
    )
    dockerfile = "\n".join(lines) + " /usr/local/bin/\n"
    return await provider.prepare(context(folder, dockerfile, hello__txt="hello", hi="#!/bin/sh\necho hi\n"))


@pytest.fixture
async def create(provider, image):
    """Makes sandboxes of that image, and ends them."""
    made = []

    async def create(**settings):
        made.append(await provider.create(SandboxSpec(**{"image": image, "ttl": 600, **settings})))
        return made[-1]

    yield create
    for box in made:
        await provider.kill(box.id)

"""The conformance kit, on a real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import ClassVar

import pytest
from agent_env_docker.provider import DockerProvider
from agent_env_docker.settings import Settings

from agent_env_core.sandbox.contract import Image
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


@pytest.mark.docker
class TestDocker(SandboxConformance):
    @pytest.fixture
    async def provider(self) -> AsyncIterator[DockerProvider]:
        provider = Remembering(Settings(builder="classic", bytecode=False))  # what every engine can do
        yield provider
        await provider.aclose()

"""A host over a provider that lives in memory."""

from __future__ import annotations

import pytest

from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.testing.fake import FakeProvider


@pytest.fixture
def fake():
    return FakeProvider()


@pytest.fixture
async def host(fake):
    host = SandboxHost(fake, run_id="run")
    await host.start()
    yield host
    fake.heal()
    await host.aclose()


@pytest.fixture
async def spec(fake):
    return SandboxSpec(await fake.prepare(Image(ref="registry.example/x:1")), 60)

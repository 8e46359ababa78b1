from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from agent_env_core.errors import Busy, ConfigError, Gone, Unavailable
from agent_env_core.sandbox.contract import ExecResult, Image, SandboxSpec
from agent_env_core.testing.fake import METHODS, FakeProvider
from agent_env_core.testing.sandbox import SandboxConformance


class TestConformance(SandboxConformance):
    """The kit, without what needs real commands."""

    subjects = ("life", "leases", "files", "refusals", "errors")

    @pytest.fixture
    async def provider(self):
        async def missing(box, argv, stdin):
            return ExecResult(127, b"", b"")

        return FakeProvider(programs={"no-such-program-anywhere": missing})

    @pytest.fixture
    async def image(self, provider):
        return await provider.prepare(Image(ref="docker.io/library/python:3.12-slim"))

    @pytest.fixture
    def outside(self, provider):
        async def exist(labels):
            return [box.id for box in provider.sandboxes.values() if labels.items() <= box.labels.items()]

        return exist

    @pytest.fixture
    def faults(self, provider):
        @asynccontextmanager
        async def failing(error, methods=METHODS, after=False):
            for method in methods:
                provider.fault(method, times=100, error=error, after=after)
            yield provider
            provider.heal()

        @asynccontextmanager
        async def evicted():
            for box in list(provider.sandboxes):
                provider.die(box)
            yield provider

        return {
            "config": lambda: failing(ConfigError("no such key")),
            "busy": lambda: failing(Busy("full", retry_after=0.01), ["create"]),
            "unavailable": lambda: failing(Unavailable("down")),
            "lost": lambda: failing(Unavailable("no answer"), after=True),
            "evicted": evicted,
        }


@pytest.fixture
async def made():
    fake = FakeProvider()
    return fake, SandboxSpec(await fake.prepare(Image(ref="registry.example/x:1")), 60)


async def test_a_fault_happens_as_often_as_asked(made):
    fake, spec = made
    fake.fault("create", error=Unavailable("lost"), times=2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="lost"):
            await fake.create(spec)
    await fake.create(spec)
    assert (fake.calls["create"], fake.created) == (3, 1)


async def test_a_fault_may_strike_after_the_work(made):
    fake, spec = made
    fake.fault("create", error=Unavailable("lost"), after=True)
    with pytest.raises(Unavailable):
        await fake.create(spec)
    assert fake.created == len(fake.sandboxes) == 1


async def test_a_hang_ends_only_by_cancelling(made):
    fake, spec = made
    box = await fake.create(spec)
    fake.fault("kill", hang=True)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fake.kill(box.id), 0.01)
    assert box.id in fake.sandboxes
    assert await fake.kill(box.id)


async def test_healing_takes_faults_back(made):
    fake, spec = made
    fake.fault("create", hang=True, times=100)
    fake.heal()
    await fake.create(spec)


async def test_a_misspelt_method_is_refused():
    with pytest.raises(ValueError, match=r"creat'.*create"):
        FakeProvider().fault("creat", hang=True)


async def test_a_sandbox_dies_in_a_call(made):
    fake, spec = made
    box = await fake.create(spec)
    fake.fault("exec", dies="out of memory")
    with pytest.raises(Gone, match="out of memory"):
        await box.exec(["true"])
    assert [info.id async for info in fake.list({})] == [box.id], "what is left of it must be found"


async def test_capacity_is_a_limit(made):
    fake = FakeProvider(capacity=1)
    spec = SandboxSpec(await fake.prepare(Image(ref="registry.example/x:1")), 60)
    box = await fake.create(spec)
    with pytest.raises(Busy):
        await fake.create(spec)
    await fake.kill(box.id)
    await fake.create(spec)
    assert fake.most == 1


async def test_an_application_answers_on_the_endpoint():
    async def app(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": scope["path"].encode()})

    fake = FakeProvider(app=lambda spec: app)
    image = await fake.prepare(Image(ref="registry.example/x:1"))
    box = await fake.create(SandboxSpec(image, 60, ports=(80,)))
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get((await box.endpoint(80)).url + "/card")).text == "/card"
    await fake.kill(box.id)

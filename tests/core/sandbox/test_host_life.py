"""A host from its start to its end: what others left, what is under way when it closes, leases meanwhile."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from waiting import eventually

from agent_env_core.errors import ConfigError, Unavailable
from agent_env_core.sandbox import host as host_module
from agent_env_core.sandbox import renewal as renewal_module
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.sandbox.leases import Owner, lease_labels
from agent_env_core.testing.fake import CAPABILITIES, FakeProvider

IMAGE = Image(ref="registry.example/x:1")


class TestStart:
    async def test_it_ends_what_dead_owners_left_and_nothing_else(self, fake, caplog):
        image = await fake.prepare(IMAGE)
        dead, alive = replace(Owner.current(), start="1"), Owner.current()
        elsewhere = replace(dead, host="other-00000000")
        for owner in (dead, alive, elsewhere):
            await fake.create(SandboxSpec(image, 60, labels=lease_labels(owner, "earlier", 60)))
        await fake.create(SandboxSpec(image, 60))  # not one of ours
        host = SandboxHost(fake)
        with caplog.at_level(logging.INFO):
            await host.start()
        assert fake.killed == 1
        assert "fake-1" not in fake.sandboxes
        assert "ended leftover sandbox fake-1" in caplog.text
        await host.aclose()

    async def test_a_provider_that_cant_be_used_says_so_once(self, fake, caplog):
        fake.fault("list", error=ConfigError("no engine here; start it"), times=2)
        host = SandboxHost(fake)
        with pytest.raises(ConfigError, match="no engine"):
            await host.start()
        assert await host.aclose() == []
        assert "no engine" not in caplog.text

    async def test_a_provider_that_doesnt_answer_now_is_used_later(self, fake, caplog):
        fake.fault("list", error=Unavailable("timeout"))
        host = SandboxHost(fake)
        await host.start()
        assert "can't look for leftovers of dead runs: timeout" in caplog.text
        await host.create(SandboxSpec(await fake.prepare(IMAGE), 60))
        assert await host.aclose() == []

    async def test_one_that_is_given_up_sends_its_reaper_away(self, fake, monkeypatch):
        said = []

        class Reaper:
            def __init__(self, *_):
                pass

            def start(self):
                said.append("start")

            async def keep(self):
                await asyncio.Event().wait()

            async def stop(self):
                said.append("stop")

        monkeypatch.setattr(host_module, "ReaperProcess", Reaper)
        fake.fault("list", hang=True)
        starts = asyncio.create_task(SandboxHost(fake, reaper=("fake", {})).start())
        await eventually(lambda: fake.calls["list"])
        starts.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starts
        assert said == ["start", "stop"]


class TestClose:
    async def test_it_ends_everything_and_closes_the_provider(self, fake, spec):
        host = SandboxHost(fake)
        for _ in range(5):
            await host.create(spec)
        assert await host.aclose() == []
        assert await host.aclose() == []
        assert (fake.sandboxes, fake.closed, host.live) == ({}, True, 0)

    async def test_it_leaves_another_hosts_sandboxes_alone(self, fake, spec):
        one, other = SandboxHost(fake), SandboxHost(fake)
        await one.create(spec)
        box = await other.create(spec)
        await one.aclose()
        assert set(fake.sandboxes) == {box.id}
        await other.aclose()

    async def test_creates_under_way_are_undone(self, fake, spec):
        host = SandboxHost(fake, max_starting=2)
        fake.fault("create", until=(goes_on := asyncio.Event()), times=8)
        creates = [asyncio.create_task(host.create(spec)) for _ in range(8)]
        await eventually(lambda: fake.calls["create"])
        closing = asyncio.create_task(host.aclose())
        await asyncio.sleep(0)
        goes_on.set()
        assert await closing == []
        answers = await asyncio.gather(*creates, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert fake.sandboxes == {}

    async def test_nothing_is_created_afterwards(self, fake, spec):
        host = SandboxHost(fake)
        await host.aclose()
        with pytest.raises(Unavailable, match="closing"):
            await host.create(spec)

    async def test_it_finds_what_no_call_returned(self, fake, spec):
        host = SandboxHost(fake)
        await fake.create(replace(spec, labels=host.labels))
        await host.aclose()
        assert fake.sandboxes == {}

    async def test_survivors_are_named(self, fake, spec, caplog, monkeypatch):
        monkeypatch.setattr(host_module, "CLOSE_BUDGET", 0.05)
        host = SandboxHost(fake)
        stays, goes = await host.create(spec), await host.create(spec)
        await host.destroy(goes.id)
        fake.fault("kill", error=Unavailable("no answer"), times=1000)
        assert await host.aclose() == [stays.id]
        assert f"could not end sandbox {stays.id}" in caplog.text

    async def test_a_create_that_hangs_is_left_to_the_reaper(self, fake, spec, monkeypatch):
        monkeypatch.setattr(host_module, "CLOSE_BUDGET", 0.05)
        said = []

        class Reaper:
            def __init__(self, *_):
                pass

            def start(self):
                said.append("start")

            async def keep(self):
                said.append("armed")

            async def stop(self):
                said.append("stop")

            def release(self):
                said.append("release")

        monkeypatch.setattr(host_module, "ReaperProcess", Reaper)
        host = SandboxHost(fake, reaper=("fake", {}))
        await host.start()
        fake.fault("create", hang=True)
        create = asyncio.create_task(host.create(spec))
        await eventually(lambda: fake.calls["create"])
        assert await host.aclose() == []
        assert said == ["start", "armed", "release"]
        with pytest.raises(Unavailable, match="closing"):
            await create

    async def test_builds_under_way_are_stopped(self, fake):
        host = SandboxHost(fake)
        fake.fault("prepare", hang=True)
        build = asyncio.create_task(host.prepare(IMAGE))
        await eventually(lambda: fake.calls["prepare"])
        await host.aclose()
        with pytest.raises(Unavailable, match="closing"):
            await build

    async def test_as_a_context_it_starts_and_closes(self, fake, spec):
        async with SandboxHost(fake) as host:
            await host.create(spec)
            assert host.provider is fake
            assert host.live == 1
        assert fake.sandboxes == {}


class TestLeases:
    @pytest.fixture(autouse=True)
    def pauses(self, monkeypatch):
        """How long the host waits before each renewal; it doesn't, so that leases are long and renewed at once."""
        pauses = []

        async def skip(seconds, _):
            pauses.append(seconds)
            await asyncio.sleep(0.001)

        monkeypatch.setattr(renewal_module, "_sleep", skip)
        return pauses

    async def test_one_is_renewed_until_its_sandbox_is_ended(self, host, fake, spec, pauses):
        box = await host.create(spec)
        host.keep(box, 60)
        await eventually(lambda: fake.calls["extend"] >= 2)
        await host.destroy(box.id)
        calls = fake.calls["extend"]
        await asyncio.sleep(0.01)  # ten times the pause
        assert fake.calls["extend"] == calls
        assert set(pauses) == {20}

    async def test_none_is_renewed_for_what_is_being_ended(self, host, fake, spec):
        """As a create does that comes back while its host closes."""
        box = await host.create(spec)
        fake.fault("kill", until=(goes_on := asyncio.Event()))
        ending = asyncio.create_task(host.destroy(box.id))
        await eventually(lambda: fake.calls["kill"])
        host.keep(box, 60)
        assert not host._renewals._keeping
        goes_on.set()
        await ending

    async def test_whatever_a_provider_raises_it_is_tried_again_soon(self, host, fake, spec, pauses):
        box = await host.create(spec)
        fake.fault("extend", error=KeyError("a bug of the provider's"))
        host.keep(box, 60)
        await eventually(lambda: fake.calls["extend"] >= 2)
        assert pauses[:3] == [20, 5, 20]

    async def test_one_that_hangs_delays_no_other(self, host, fake, spec):
        one, other = await host.create(spec), await host.create(spec)
        fake.fault("extend", hang=True)
        host.keep(one, 60)
        await eventually(lambda: fake.calls["extend"])
        host.keep(other, 60)
        await eventually(lambda: fake.calls["extend"] >= 3)

    async def test_what_is_gone_is_let_go(self, host, fake, spec):
        box = await host.create(spec)
        host.keep(box, 60)
        fake.die(box.id)
        await eventually(lambda: host._renewals._keeping[box.id].done())

    async def test_a_provider_that_cant_is_not_asked(self):
        fake = FakeProvider(capabilities=replace(CAPABILITIES, extend=False))
        host = SandboxHost(fake)
        box = await host.create(SandboxSpec(await fake.prepare(IMAGE), 60))
        host.keep(box, 60)
        await asyncio.sleep(0.01)
        assert fake.calls["extend"] == 0
        await host.aclose()

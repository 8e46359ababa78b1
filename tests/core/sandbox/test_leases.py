from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from agent_env_core.errors import Unavailable
from agent_env_core.sandbox import machine
from agent_env_core.sandbox.contract import Image, SandboxInfo, SandboxSpec
from agent_env_core.sandbox.leases import (
    EXPIRES_LABEL,
    EXPIRY_GRACE,
    Owner,
    expiry,
    lease_labels,
    owner_is_dead,
    reap,
    why_expired,
    why_reapable,
)
from agent_env_core.testing.fake import FakeProvider


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def owner_of(pid: int) -> Owner:
    return replace(Owner.current(), pid=pid, start=machine.process_start(pid))


def test_an_owner_survives_its_label():
    owner = Owner.current()
    assert Owner.parse(str(owner)) == owner
    assert owner.pid == os.getpid()
    assert len(str(owner)) <= 63, "longer values are refused as labels by some providers"


@pytest.mark.parametrize("text", ["", "me", "host/boot", "host/boot:pid:1", "host/boot:1", "a/b/c:1:1", "h/b:1:1:1"])
def test_a_foreign_label_is_no_owner(text):
    assert Owner.parse(text) is None


def test_this_process_is_alive(sleeper):
    assert not owner_is_dead(Owner.current())
    assert not owner_is_dead(owner_of(sleeper.pid))


def test_a_killed_process_is_dead_before_its_parent_looked(sleeper):
    owner = owner_of(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert owner_is_dead(owner)
    sleeper.wait()
    assert owner_is_dead(owner)


def test_a_number_that_is_used_again_is_another_process():
    assert owner_is_dead(replace(Owner.current(), start="1"))


@pytest.mark.parametrize("change", [{"host": "elsewhere-00000000"}, {"boot": "00000000"}, {"start": "unknown"}])
def test_what_cannot_be_looked_up_here_is_taken_to_live(change):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = replace(Owner.current(), pid=ended.pid, start="1")
    assert owner_is_dead(dead)
    assert not owner_is_dead(replace(dead, **change))


def test_a_process_that_may_not_be_looked_at_is_taken_to_live(monkeypatch):
    def forbidden(pid: int, number: int) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(machine.os, "kill", forbidden)
    monkeypatch.setattr(machine, "_stat", lambda pid: None)
    assert not machine.process_is_dead(1, "1")


def test_a_lease_says_when_it_ends():
    labels = lease_labels(Owner.current(), "run", 600, now=1000)
    assert expiry(labels) == 1600
    assert expiry({}) is None
    assert expiry({EXPIRES_LABEL: "soon"}) is None


def test_a_lease_ends_only_after_the_grace():
    info = SandboxInfo("x", lease_labels(Owner.current(), "run", 600, now=1000))
    assert why_expired(info, now=1600 + EXPIRY_GRACE) is None
    assert "ended 61 s ago" in why_expired(info, now=1601 + EXPIRY_GRACE)
    assert why_expired(SandboxInfo("x", {}), now=1e12) is None


def test_what_carries_no_lease_is_not_ours():
    assert why_reapable(SandboxInfo("x", {"somebody.else": "0"})) is None


def test_a_lease_without_an_owner_ends_with_its_time():
    assert "lease ended" in why_reapable(SandboxInfo("x", {EXPIRES_LABEL: "0"}))
    assert why_reapable(SandboxInfo("x", {EXPIRES_LABEL: "99999999999"})) is None


def test_a_living_owners_sandbox_is_left_alone_and_a_dead_ones_is_not():
    alive = SandboxInfo("x", lease_labels(Owner.current(), "run", 600))
    assert why_reapable(alive) is None
    assert why_reapable(SandboxInfo("x", lease_labels(Owner.current(), "run", 600, now=0))) is None, "the clock was set"
    dead = replace(Owner.current(), start="1")
    assert "is dead" in why_reapable(SandboxInfo("x", lease_labels(dead, "run", 600)))
    elsewhere = replace(Owner.current(), host="other-00000000")
    assert why_reapable(SandboxInfo("x", lease_labels(elsewhere, "run", 600))) is None
    assert "lease ended" in why_reapable(SandboxInfo("x", lease_labels(elsewhere, "run", 600, now=0)))


class TestReap:
    @pytest.fixture
    def fake(self):
        return FakeProvider()

    async def make(self, fake, **labels):
        image = await fake.prepare(Image(ref="registry.example/x:1"))
        return await fake.create(SandboxSpec(image, 60, labels={"group": "a", **labels}))

    async def test_only_what_has_a_reason_both_times_is_ended(self, fake):
        one, other = await self.make(fake), await self.make(fake)
        looks = []

        def why(info):
            looks.append(info.id)
            return "expired" if looks.count(info.id) == 1 or info.id == one.id else None

        reaped = await reap(fake, why=why)
        assert set(reaped.killed) == {one.id}
        assert set(fake.sandboxes) == {other.id}

    async def test_labels_narrow_it(self, fake):
        one, other = await self.make(fake), await self.make(fake, group="b")
        assert set((await reap(fake, {"group": "a"}, why=lambda _: "all")).killed) == {one.id}
        assert set(fake.sandboxes) == {other.id}

    async def test_one_that_resists_does_not_save_the_others(self, fake):
        for _ in range(3):
            await self.make(fake)
        fake.fault("kill", error=Unavailable("no answer"))
        reaped = await reap(fake, why=lambda _: "all")
        assert len(reaped.killed) == 2
        assert list(reaped.failed.values()) == ["no answer"]

    async def test_a_renewed_lease_is_not_ended(self, fake):
        box = await self.make(fake, **{EXPIRES_LABEL: "1"})

        def why(info):
            reason = why_reapable(info, now=time.time())
            box.labels[EXPIRES_LABEL] = "99999999999"  # renewed between the two looks
            return reason

        assert not await reap(fake, why=why)
        assert box.id in fake.sandboxes

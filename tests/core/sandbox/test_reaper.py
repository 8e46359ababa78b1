from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import eventually

from agent_env_core.errors import ConfigError, Unavailable
from agent_env_core.sandbox import reaper
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.sandbox.leases import Owner, Reaped, lease_labels
from agent_env_core.sandbox.machine import process_start
from agent_env_core.sandbox.reaper import ReaperProcess, clear
from agent_env_core.testing.fake import FakeProvider

LABELS = {"agent-env.run": "run", "agent-env.owner": "someone"}


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.setattr(reaper, "QUIET_GAP", 0.02)


def descriptors(pid):
    """What a process has open, by number."""
    held = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            held[number] = os.readlink(f"/proc/{pid}/fd/{number}")
    return held


class TestClear:
    @pytest.fixture
    async def fake(self):
        fake = FakeProvider()
        self.image = await fake.prepare(Image(ref="registry.example/x:1"))
        return fake

    async def make(self, fake, labels=LABELS):
        return await fake.create(SandboxSpec(self.image, 60, labels=labels))

    async def test_it_ends_what_carries_the_labels_and_nothing_else(self, fake):
        for _ in range(3):
            await self.make(fake)
        other = await self.make(fake, {**LABELS, "agent-env.run": "another"})
        done = await clear(fake, LABELS)
        assert (len(done.killed), done.failed) == (3, {})
        assert set(fake.sandboxes) == {other.id}

    async def test_quiet_sweeps_end_it(self, fake):
        assert not await clear(fake, LABELS)
        assert fake.calls["list"] == reaper.QUIET_SWEEPS

    async def test_a_sandbox_that_surfaces_late_is_ended_too(self, fake, monkeypatch):
        await self.make(fake)
        kill = fake.kill

        async def kill_and_surface(id):
            ended = await kill(id)
            if fake.created == 1:
                await self.make(fake)
            return ended

        monkeypatch.setattr(fake, "kill", kill_and_surface)
        done = await clear(fake, LABELS)
        assert len(done.killed) == 2
        assert fake.sandboxes == {}

    async def test_it_outlasts_a_provider_that_is_down_for_a_while(self, fake):
        await self.make(fake)
        fake.fault("list", error=Unavailable("down"), times=2)
        fake.fault("kill", error=Unavailable("down"))
        done = await clear(fake, LABELS)
        assert (len(done.killed), done.failed, fake.sandboxes) == (1, {}, {})

    async def test_an_engine_that_is_away_for_minutes_is_waited_for(self, fake, monkeypatch):
        slept = []
        sleep = asyncio.sleep

        async def skip(seconds):
            slept.append(seconds)
            await sleep(0)

        monkeypatch.setattr(reaper.asyncio, "sleep", skip)
        await self.make(fake)
        fake.fault("list", error=Unavailable("the daemon restarts"), times=40)
        assert len((await clear(fake, LABELS)).killed) == 1
        assert sum(slept) > 300
        assert max(slept) == reaper.LONGEST_PAUSE

    async def test_it_gives_up_and_says_what_stands(self, fake):
        box = await self.make(fake)
        fake.fault("kill", error=Unavailable("stuck"), times=1000)
        done = await clear(fake, LABELS, patience=0.1)
        assert done.failed == {box.id: "stuck"}


class TestWatch:
    @pytest.fixture
    def pair(self):
        ours, theirs = socket.socketpair()
        yield ours, theirs
        ours.close()
        theirs.close()

    def test_nothing_happens_for_a_while(self, pair):
        assert reaper._Watch(pair[0], Owner.current()).next(0.01) == "tick"

    def test_a_goodbye_is_no_death(self, pair):
        ours, theirs = pair
        theirs.send(reaper.BYE)
        theirs.close()
        assert reaper._Watch(ours, Owner.current()).next(60) == "bye"

    def test_a_closed_channel_is_a_death(self, pair):
        ours, theirs = pair
        theirs.close()
        assert reaper._Watch(ours, Owner.current()).next(60) == "gone"

    def test_so_is_one_that_was_closed_with_something_unread(self, pair):
        ours, theirs = pair
        ours.send(reaper.ARMED)
        theirs.close()
        assert reaper._Watch(ours, Owner.current()).next(60) == "gone"

    @pytest.mark.parametrize("pidfds", [True, False])
    def test_a_dead_owner_is_noticed_though_its_channel_stays_open(self, pair, monkeypatch, pidfds):
        if not pidfds:
            monkeypatch.delattr(os, "pidfd_open")
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            owner = replace(Owner.current(), pid=process.pid, start=process_start(process.pid))
            watch = reaper._Watch(pair[0], owner)
            assert watch.next(0.01) == "tick"
            process.kill()
            assert watch.next(60) == "gone"


class TestBeginsAnew:
    """The packages were upgraded since it started, and what it loads now doesn't fit what it has."""

    @pytest.fixture
    def channel(self, monkeypatch):
        monkeypatch.setattr(reaper, "LONGEST_PAUSE", 0.0)
        ours, theirs = socket.socketpair()
        hello = {"provider": "fake", "config": {}, "owner": str(replace(Owner.current(), start="1")), "run": "run"}
        ours.sendall(json.dumps(hello).encode() + b"\n")
        ours.close()
        with theirs:
            yield theirs

    def test_as_a_process_that_knows_what_to_do(self, channel, monkeypatch):
        started, ended = [], []

        def load(hello, work):
            if not started:
                raise ImportError("cannot import name 'x'")
            ended.append(hello["run"])
            return Reaped()

        monkeypatch.setattr(reaper, "_with_provider", load)
        monkeypatch.setattr(os, "execv", lambda program, argv: started.append((program, argv)))
        reaper.serve(channel)
        ((program, argv),) = started
        assert (program, argv[:3]) == (sys.executable, [sys.executable, "-m", "agent_env_core.sandbox.reaper"])
        assert os.get_inheritable(int(argv[3]))
        with socket.socket(fileno=int(argv[3])) as other:
            reaper.serve(other)
        assert (ended, len(started)) == (["run"], 1)

    def test_for_a_while(self, channel, monkeypatch):
        monkeypatch.setattr(reaper, "PATIENCE", -1.0)

        def load(hello, work):
            raise ImportError("cannot import name 'x'")

        monkeypatch.setattr(reaper, "_with_provider", load)
        with pytest.raises(Unavailable, match="agent-env gc"):
            reaper.serve(channel)


@pytest.mark.usefixtures("no_processes_left")
class TestProcess:
    @pytest.fixture
    def inheritable(self):
        os.dup2(0, 250)  # a number that nothing else takes
        yield 250
        os.close(250)

    @pytest.fixture
    async def process(self, tmp_path, inheritable):
        config = {"state_dir": str(tmp_path), "cache_dir": str(tmp_path / "cache")}
        process = ReaperProcess("process", config, Owner.current(), "run")
        process.start()
        yield process
        await process.stop()

    async def test_it_says_that_it_watches_and_leaves_when_sent_away(self, process):
        await process.armed()
        pid = process.pid
        await process.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert process.pid is None

    async def test_it_can_be_sent_away_before_it_was_ready(self, process):
        await asyncio.wait_for(process.stop(), 60)

    async def test_it_is_out_of_reach_of_its_owners_terminal(self, process):
        await process.armed()
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process.pid, number)
        assert process._process.poll() is None

    @pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
    async def test_it_keeps_no_descriptor_of_its_owner(self, process, inheritable):
        await process.armed()

        def only_its_own():  # it may be reading a file just now
            held = descriptors(process.pid)
            sockets = [name for name in held.values() if name.startswith("socket:")]
            return len(sockets) == 1 and set(held.values()) <= {*sockets, os.devnull, "anon_inode:[pidfd]"}

        await eventually(only_its_own)
        assert str(inheritable) not in descriptors(process.pid)

    async def test_one_that_is_killed_is_replaced(self, process, monkeypatch):
        monkeypatch.setattr(reaper, "LOOK", 0.05)
        armed, watching = process.armed, asyncio.Queue()

        async def tell():
            await armed()
            watching.put_nowait(process.pid)

        monkeypatch.setattr(process, "armed", tell)
        keeping = asyncio.create_task(process.keep())
        first = await asyncio.wait_for(watching.get(), 60)
        os.kill(first, signal.SIGKILL)
        assert await asyncio.wait_for(watching.get(), 60) != first
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    async def test_one_that_cannot_start_is_told(self, tmp_path):
        process = ReaperProcess("process", {}, replace(Owner.current(), host="not/an/owner"), "run")
        process.start()
        with pytest.raises(Unavailable, match="doesn't answer"):
            await process.armed()
        await process.stop()

    async def test_a_config_that_is_no_json_is_refused_before_anything_starts(self):
        process = ReaperProcess("process", {"client": object()}, Owner.current(), "run")
        with pytest.raises(ConfigError, match="plain JSON values"):
            process.start()
        assert process.pid is None


def test_it_ends_what_outlived_its_lease(tmp_path):
    from agent_env_process.state import Record, State

    owner = Owner.current()
    labels = {"agent-env.owner": str(owner), "agent-env.run": "run"}
    state = State(tmp_path)
    state.save(Record("old", lease_labels(owner, "run", 60, now=0), "x"))
    state.save(Record("new", lease_labels(owner, "run", 60), "x"))
    hello = {"provider": "process", "config": {"state_dir": str(tmp_path)}, "owner": str(owner), "run": "run"}
    assert reaper._end_expired(hello, labels) is True
    assert [record.id for record in state.records()] == ["new"]

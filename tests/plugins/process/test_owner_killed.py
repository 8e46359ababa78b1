"""A process that owns sandboxes ends in every way there is; nothing of it stays, and its neighbours notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from agent_env_process import cgroups
from agent_env_process.environment import MARK
from agent_env_process.procs import members
from agent_env_process.state import State

from agent_env_core.sandbox.choose import open_host
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.testing.checks.base import eventually as kit_eventually

eventually = partial(kit_eventually, seconds=20, what="what the test waits for")

OWNER = """
import asyncio, json, os, sys, time
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.sandbox.choose import open_host

config, image, mode = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
# A main process with a child that leaves its session, and a command that runs as long.
MAIN = ("sh", "-c", "setsid sleep 600 & sleep 600")

async def main():
    host = open_host("process", config, run_id="killed")
    await host.start()
    if mode == "busy":
        print(json.dumps({"reaper": host._reaper.pid, "ids": []}), flush=True)
        while True:
            await asyncio.gather(*(host.create(SandboxSpec(image, 600, command=MAIN)) for _ in range(4)))
    boxes = [await host.create(SandboxSpec(image, 600, command=MAIN)) for _ in range(3)]
    boxes.append(await host.create(SandboxSpec(image, 600)))
    command = asyncio.create_task(boxes[-1].exec(["sh", "-c", "echo > started; sleep 600"]))
    while True:
        try:
            await boxes[-1].read("/app/started")
            break
        except FileNotFoundError:
            await asyncio.sleep(0.01)
    if mode == "fork" and os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(20)
        os._exit(0)
    print(json.dumps({"reaper": host._reaper.pid, "ids": [box.id for box in boxes]}), flush=True)
    if mode == "close":
        sys.stdin.readline()
        command.cancel()
        await host.aclose()
    else:
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def state(config):
    return State(Path(config["state_dir"]))


@pytest.fixture
async def image(provider, tmp_path, context):
    folder = tmp_path / "context"
    folder.mkdir()
    return await provider.prepare(context(folder, "FROM python:3.11-slim\nWORKDIR /app\n"))


@pytest.fixture
def own(config, image):
    """Starts an owner in a process of its own; gives the process and what it printed."""
    started = []

    def start(mode="wait"):
        argv = [sys.executable, "-c", OWNER, json.dumps(config), image, mode]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        return process, json.loads(process.stdout.readline())

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def alive(pid):
    return Path(f"/proc/{pid}").exists()


def grouped(sandbox_id):
    return any(map(os.path.exists, cgroups.choose().folders(sandbox_id)))


async def nothing_left(state, ids):
    """Waits until neither files nor processes nor control groups of these sandboxes are there."""

    async def gone():
        return not (set(ids) & {record.id for record in state.records()}) and not any(
            members(f"{MARK}={sandbox_id}") for sandbox_id in ids
        )

    await eventually(gone)
    assert not any(state.box(sandbox_id).exists() for sandbox_id in ids)
    assert not any(map(grouped, ids))


async def test_a_killed_owner_leaves_nothing_and_its_neighbour_is_untouched(own, state, config, image):
    async with open_host("process", config) as neighbour:
        box = await neighbour.create(SandboxSpec(image, 600, command=("sleep", "600")))
        process, said = own()
        assert len(said["ids"]) == 4
        assert all(members(f"{MARK}={sandbox_id}") for sandbox_id in said["ids"])
        process.kill()
        process.wait()
        await nothing_left(state, said["ids"])
        assert (await box.exec(["echo", "still here"])).stdout == b"still here\n"
        assert [record.id for record in state.records()] == [box.id]


async def test_an_owner_killed_while_it_creates_leaves_nothing(own, state):
    process, said = own("busy")

    async def busy():
        return len(list(state.records())) >= 6

    await eventually(busy)
    process.kill()
    process.wait()

    async def gone():
        return not list(state.records()) and not os.listdir(state.folder / "boxes")

    await eventually(gone)

    async def reaper_gone():
        return not alive(said["reaper"])

    await eventually(reaper_gone)
    assert not list(state.records())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_the_whole_group_leaves_nothing(own, state, number):
    process, said = own()
    os.killpg(process.pid, number)
    process.wait()
    await nothing_left(state, said["ids"])


async def test_a_forked_child_of_the_owner_does_not_keep_its_sandboxes(own, state):
    process, said = own("fork")  # the child holds a copy of the reaper's channel
    process.kill()
    process.wait()
    await nothing_left(state, said["ids"])


async def test_with_its_reaper_killed_too_the_next_start_cleans_up(own, state, config):
    process, said = own()
    process.send_signal(signal.SIGSTOP)  # or it would start another
    os.kill(said["reaper"], signal.SIGKILL)

    reaper = psutil.Process(said["reaper"])

    async def reaper_gone():
        return reaper.status() == psutil.STATUS_ZOMBIE

    await eventually(reaper_gone)
    process.kill()
    process.wait()
    records = list(state.records())
    assert {record.id for record in records} == set(said["ids"])
    await eventually(lambda: asyncio.sleep(0, not any(record.main and record.main.alive for record in records)))
    async with open_host("process", config):
        await nothing_left(state, said["ids"])


async def test_a_stopped_owner_is_not_a_dead_one(own, state, config):
    process, said = own()
    os.kill(process.pid, signal.SIGSTOP)
    async with open_host("process", config):
        assert {record.id for record in state.records()} == set(said["ids"])
    os.kill(process.pid, signal.SIGCONT)


async def test_an_owner_that_closes_sends_its_reaper_away(own, state):
    process, said = own("close")
    process.communicate(b"\n", timeout=30)
    assert process.returncode == 0
    assert not alive(said["reaper"])
    assert not list(state.records())
    await nothing_left(state, said["ids"])


async def test_two_hosts_side_by_side_end_only_their_own(config, image, state):
    one, other = open_host("process", config), open_host("process", config)
    await one.start()
    await other.start()
    await one.create(SandboxSpec(image, 600, command=("sleep", "600")))
    box = await other.create(SandboxSpec(image, 600, command=("sleep", "600")))
    await one.aclose()
    assert [record.id for record in state.records()] == [box.id]
    assert (await box.exec(["true"])).exit_code == 0
    await other.aclose()
    assert not list(state.records())


async def test_thirty_two_at_once_twice_leave_nothing(config, image, state, no_processes_left):
    me = psutil.Process()
    async with open_host("process", config) as host:
        await (await host.create(SandboxSpec(image, 600))).exec(["true"])  # what is opened once and kept is open now
        files = me.num_fds()
        for _ in range(2):
            spec = SandboxSpec(image, 600, command=("sleep", "600"), ports=(80,), port_env={"PORT": 80})
            boxes = await asyncio.gather(*(host.create(spec) for _ in range(32)))
            assert len({(await box.endpoint(80)).url for box in boxes}) == 32
            assert all(await asyncio.gather(*(host.destroy(box.id) for box in boxes)))
        assert me.num_fds() <= files
    assert not list(state.records())
    assert os.listdir(state.folder / "boxes") == []

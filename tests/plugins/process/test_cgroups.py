"""Limits by control groups, where the machine that runs the tests lets this process make some."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from agent_env_process import cgroups
from agent_env_process.cgroups import Groups, choose
from agent_env_process.environment import MARK
from agent_env_process.procs import members
from agent_env_process.provider import ProcessProvider
from agent_env_process.state import State

from agent_env_core.errors import Gone, Unsupported
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.testing.checks.base import eventually as kit_eventually

eventually = partial(kit_eventually, seconds=20, what="what the test waits for")
each = pytest.mark.parametrize("isolation", ["none", "namespace", "bubblewrap"], indirect=True)
with_namespaces = pytest.mark.parametrize("isolation", ["namespace", "bubblewrap"], indirect=True)
limited = pytest.mark.skipif(not choose().complete, reason=str(choose()))

TAKE = "import time; data = bytearray(b'x') * (256 << 20); time.sleep(600)"


@pytest.fixture(autouse=True)
def _allowed(isolation, allowed):
    if isolation != "auto":
        allowed(isolation)


@pytest.fixture
def state(config):
    return State(Path(config["state_dir"]))


@pytest.fixture
async def create(provider, tmp_path, context):
    folder = tmp_path / "context"
    folder.mkdir()
    image = await provider.prepare(context(folder, "FROM python:3.11-slim\nWORKDIR /app\n"))
    made = []

    async def create(**settings):
        made.append(await provider.create(SandboxSpec(image, 600, **settings)))
        return made[-1]

    yield create
    for box in made:
        await provider.kill(box.id)


def limits(state, box):
    """What the kernel says: MiB, processes, and what part of a core."""
    said = {}
    for group in map(Path, state.load(box.id).groups):
        for name in os.listdir(group):
            if name in ("memory.max", "memory.limit_in_bytes", "pids.max", "cpu.max", "cpu.cfs_quota_us"):
                said[name.split(".")[0]] = (group / name).read_text().split()[0]
    return int(said["memory"]) >> 20, int(said["pids"]), said["cpu"]


@limited
async def test_limits_are_as_asked_or_the_settings_ones(create, state):
    assert limits(state, await create()) in ((4096, 512, "-1"), (4096, 512, "max"))
    assert limits(state, await create(memory_mb=100, cpu=1.5)) == (100, 512, "150000")


@limited
@each
async def test_everything_in_a_sandbox_is_in_its_groups(create, state):
    box = await create(command=("sh", "-c", "sleep 600 & sleep 600"))

    async def all_of_it():
        found = {each.pid for each in members(f"{MARK}={box.id}")}
        inside = [cgroups._members(group) for group in state.load(box.id).groups]
        return len(found) > 2 and all(found == set(pids) for pids in inside)

    await eventually(all_of_it)


@limited
@each
async def test_an_end_for_want_of_memory_is_told(create):
    box = await create(memory_mb=64, command=("python3", "-c", TAKE))

    async def told():
        try:
            await box.exec(["true"])
        except Gone as exc:
            return str(exc)

    assert "killed by signal 9, after the sandbox ran out of memory (limit 64 MiB)" in await eventually(told)


@limited
@with_namespaces
async def test_the_end_of_what_holds_namespaces_is_told_too(create):
    box = await create(memory_mb=64)
    assert (await box.exec(["python3", "-c", TAKE])).exit_code == 137, "which leaves the sandbox as it is"
    os.kill(box._running[box.id]._record.holder.pid, 9)

    async def told():
        try:
            await box.exec(["true"])
        except Gone as exc:
            return str(exc)

    assert "held its namespaces ended" in (said := await eventually(told))
    assert "after the sandbox ran out of memory (limit 64 MiB)" in said


@limited
@each
async def test_a_fork_bomb_takes_what_one_sandbox_may_have(create, provider):
    provider.settings = provider.settings.model_copy(update={"pids": 40})
    box = await create()
    done = await box.exec(
        ["python3", "-c", "import os, signal\nfor n in range(60):\n  if os.fork() == 0: (signal.pause(), os._exit(0))"]
    )
    assert b"BlockingIOError" in done.stderr, done


PAUSE_UNMARKED = """
import os, signal
if os.fork(): os._exit(0)
os.setsid()
os.execve('/bin/sleep', ['sleep', '617'], {})
"""


@limited
@pytest.mark.parametrize("isolation", ["none"], indirect=True)
async def test_what_hides_is_ended_without_namespaces_too(create, provider, state, no_processes_left):
    box = await create()
    assert (await box.exec(["python3", "-c", PAUSE_UNMARKED])).exit_code == 0
    groups = state.load(box.id).groups

    async def hiding():
        return cgroups._members(groups[0])

    assert await eventually(hiding)
    assert await provider.kill(box.id)
    assert not any(map(os.path.exists, groups))


@limited
async def test_groups_below_go_too_and_no_other_is_touched(create, provider, state):
    box, other = await create(), await create()
    groups, others = (state.load(each.id).groups for each in (box, other))
    for group in groups:
        os.makedirs(f"{group}/one/two")
    assert await provider.kill(box.id)
    assert not any(map(os.path.exists, groups))
    assert all(map(os.path.exists, others))


@limited
async def test_the_end_of_a_slow_sandbox_is_not_slow(create, provider, state, monkeypatch):
    box = await create(cpu=0.5)
    seen = []
    monkeypatch.setattr(cgroups, "remove", lambda groups: seen.append(limits(state, box)[2]))
    assert await provider.kill(box.id)
    monkeypatch.undo()
    assert seen in (["-1"], ["max"])
    cgroups.remove(choose().folders(box.id))


@with_namespaces
async def test_limits_are_out_of_reach(create):
    """In a user namespace of its own a program could mount its group's hierarchy, where the files are its user's."""
    box = await create()
    assert (await box.exec(["ls", "/sys/fs/cgroup"])).exit_code != 0
    done = await box.exec(["unshare", "--user", "--map-root-user", "--mount", "--cgroup", "true"])
    assert done.exit_code != 0
    assert b"No space left" in done.stderr, "as user namespaces are what is used up"


async def test_where_no_groups_can_be_made_limits_are_refused(config, monkeypatch):
    monkeypatch.setattr(cgroups, "choose", lambda: Groups(lacking="it is dark"))
    provider = ProcessProvider(config)
    assert not provider.capabilities.limits
    assert provider.explain().endswith("; memory, processes and cores not limited: it is dark")
    with pytest.raises(Unsupported, match="memory_mb"):
        await provider.create(SandboxSpec("image", 600, memory_mb=100))


def test_a_group_that_is_not_the_servers_to_divide_is_left_alone(monkeypatch, tmp_path):
    (tmp_path / "session.scope").mkdir()
    monkeypatch.setattr(cgroups, "_ours", lambda group: False)
    with pytest.raises(cgroups._NotHere, match=r"start it by `systemd-run .*--scope -p Delegate=yes"):
        cgroups._unified(tmp_path / "session.scope")
    assert os.listdir(tmp_path / "session.scope") == []


def test_some_limits_are_better_than_none(tmp_path):
    groups = Groups(2, {"memory": tmp_path, "pids": tmp_path}, "there is no more")
    assert (groups.complete, groups.claimed) == (False, {"memory_mb"})
    assert str(groups) == "memory and processes limited by control groups (v2); cores not limited: there is no more"
    assert groups.folders("x") == (str(tmp_path / "agent-env-x"),)

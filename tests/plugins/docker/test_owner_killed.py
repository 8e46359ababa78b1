"""A process that owns containers is killed outright; nothing of it stays, and its neighbour notices nothing."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

import pytest

from agent_env_core.sandbox.choose import open_host
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.sandbox.leases import RUN_LABEL

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("no_processes_left")]

OWNER = """
import asyncio, sys
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.sandbox.choose import open_host

async def main(image, run, mode):
    host = open_host("docker", run_id=run)
    await host.start()
    spec = SandboxSpec(image, 600, command=("sleep", "600"))
    if mode != "busy":
        await asyncio.gather(*(host.create(spec) for _ in range(4)))
        print("ready", flush=True)
        await asyncio.sleep(600)
    print("ready", flush=True)
    while True:
        await asyncio.gather(*(host.create(spec) for _ in range(4)))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("mode", ["idle", "busy", "paused"])
async def test_a_killed_owner_leaves_nothing(base, containers_with, engine, mode):
    run = f"t-{uuid.uuid4().hex[:8]}"
    async with open_host("docker", run_id=f"{run}-neighbour") as neighbour:
        box = await neighbour.create(SandboxSpec(base, 600, command=("sleep", "600")))
        argv = (sys.executable, "-c", OWNER, base, run, mode)
        owner = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        assert await owner.stdout.readline() == b"ready\n"
        await until(lambda: len(containers_with(f"{RUN_LABEL}={run}")) >= 4)
        if mode == "paused":  # whoever did it, a paused container is as much a leftover as any
            engine.containers.get(containers_with(f"{RUN_LABEL}={run}")[0]).pause()
        owner.kill()
        await owner.communicate()
        await until(lambda: not containers_with(f"{RUN_LABEL}={run}"))
        assert (await box.exec(["echo", "on"])).stdout == b"on\n"
        assert containers_with(f"{RUN_LABEL}={run}-neighbour") == [box.id]
    assert not containers_with(f"{RUN_LABEL}={run}-neighbour")


async def until(true, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

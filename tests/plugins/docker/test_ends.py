"""How sandboxes on a real engine end: by themselves, at a limit, or by a kill, which leaves nothing."""

from __future__ import annotations

import asyncio

import pytest
from agent_env_docker.provider import DockerProvider
from agent_env_docker.settings import Settings

from agent_env_core.errors import ConfigError, Gone, Unavailable
from agent_env_core.sandbox.contract import Image, SandboxSpec

pytestmark = pytest.mark.docker
BASE = "python:3.11-slim"


async def until_it_fails(call) -> None:
    """Repeats a call: whether one that is under way, or the next one, notices an end is a race."""
    async with asyncio.timeout(30):
        while True:
            await call()


async def test_a_main_process_that_dies_is_gone_with_its_last_words(make):
    sandbox = await make(command=("sh", "-c", "echo 'the last words'; read x </dev/null; exec sleep 999"))
    pid = (await sandbox.exec(["sh", "-c", "cat /proc/1/task/1/children"])).stdout.decode().strip()
    with pytest.raises(Gone):
        await until_it_fails(lambda: sandbox.exec(["sh", "-c", f"kill -9 {pid}; sleep 30"]))
    for call in (
        lambda: sandbox.exec(["true"]),
        lambda: sandbox.read("/etc/hostname"),
        lambda: sandbox.write("/x", b""),
    ):
        with pytest.raises(Gone, match=r"ended with exit code 137; its last output:\nthe last words"):
            await call()


async def test_a_main_process_that_fails_at_once_says_why(make, provider):
    sandbox = await make(command=("python3", "-c", "raise SystemExit('no such setting: X')"), ports=(8000,))
    with pytest.raises(Gone, match=r"exit code 1; its last output:\nno such setting: X"):
        await until_it_fails(lambda: sandbox.endpoint(8000))
    with pytest.raises(Gone):
        await provider.attach(sandbox.id)
    assert await provider.kill(sandbox.id)


async def test_a_paused_sandbox_is_neither_gone_nor_kept_from_its_end(make, provider, engine, leftovers):
    sandbox = await make()
    engine.api.pause(sandbox.id)
    with pytest.raises(Unavailable, match="paused"):
        await sandbox.exec(["true"])
    engine.api.unpause(sandbox.id)
    assert (await sandbox.exec(["true"])).exit_code == 0
    engine.api.pause(sandbox.id)
    assert await provider.kill(sandbox.id)
    assert not leftovers()


async def test_a_disk_limit_is_kept_or_refused(base, label, leftovers):
    limited = DockerProvider(Settings(disk_mb=64))
    refused = None
    try:
        sandbox = await limited.create(SandboxSpec(image=base, ttl=60, labels=label))
        done = await sandbox.exec(["sh", "-c", "head -c 100000000 /dev/zero > /big"])
        assert done.exit_code != 0
        await limited.kill(sandbox.id)
    except ConfigError as exc:
        refused = str(exc)
    assert refused is None or "set disk_mb=0" in refused
    assert not leftovers()
    await limited.aclose()


async def test_running_out_of_memory_is_said(make):
    sandbox = await make(memory_mb=32, command=("python3", "-c", "x = bytearray(1 << 30)"))
    with pytest.raises(Gone, match="ran out of memory"):
        await until_it_fails(lambda: sandbox.exec(["true"]))


async def test_a_kill_ends_a_running_command_as_gone(make, provider):
    sandbox = await make()
    call = asyncio.create_task(sandbox.exec(["sh", "-c", "echo on >/on; sleep 999"]))
    while (await sandbox.exec(["test", "-e", "/on"])).exit_code:
        pass
    assert await provider.kill(sandbox.id)
    with pytest.raises(Gone):
        await asyncio.wait_for(call, 10)


async def test_a_fork_bomb_is_bounded_and_its_neighbour_is_not_touched(base, label, make):
    tight = DockerProvider(Settings(pids=24))
    bombed, neighbour = await asyncio.gather(tight.create(SandboxSpec(image=base, ttl=60, labels=label)), make())
    bomb = "import os, time\ntry:\n for _ in range(200): os.fork() or time.sleep(60)\nexcept OSError: time.sleep(60)"
    with pytest.raises(Gone, match=r"can't be stopped|has ended"):  # there is no room for what would kill it
        await bombed.exec(["python3", "-c", bomb], timeout=1)
    assert (await neighbour.exec(["echo", "on"])).stdout == b"on\n"
    with pytest.raises(Gone):
        await bombed.exec(["true"])
    assert await tight.kill(bombed.id)
    await tight.aclose()


async def test_32_at_once_and_nothing_is_left(make, provider, leftovers, engine):
    networks = {network["Id"] for network in engine.api.networks()}
    sandboxes = await asyncio.gather(*(make(ports=(8000,)) for _ in range(32)))
    urls = await asyncio.gather(*(sandbox.endpoint(8000) for sandbox in sandboxes))
    assert len({endpoint.url for endpoint in urls}) == 32
    assert len(leftovers()) == 32
    assert all(await asyncio.gather(*(provider.kill(sandbox.id) for sandbox in sandboxes)))
    assert not leftovers()
    assert len({network["Id"] for network in engine.api.networks()} - networks) <= 1  # the shared one


async def test_two_kills_at_once(make, provider, leftovers):
    sandbox = await make()
    assert sorted(await asyncio.gather(*(provider.kill(sandbox.id) for _ in range(3))))[-1] is True
    assert not leftovers()
    assert await provider.kill(sandbox.id) is False


async def test_a_cancelled_create_leaves_nothing(base, label, leftovers):
    provider = DockerProvider()
    await provider.prepare(Image(ref=BASE))  # connects
    for delay in (0.0, 0.002, 0.01, 0.05, 0.1, 0.2):
        call = asyncio.create_task(provider.create(SandboxSpec(image=base, ttl=60, labels=label)))
        await asyncio.sleep(delay)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        if not call.cancelled():
            await provider.kill(call.result().id)
    await provider.aclose()  # waits for what is being undone
    assert not leftovers()

"""Deployments made ahead, out of everybody's way: room to start and to run, and memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from stock import Open, Quay, env

from agent_env_core.envs import warm as module
from agent_env_core.errors import Unsupported
from agent_env_core.sandbox.machine import Memory


async def test_nothing_is_begun_while_an_episode_waits(stock: Open):
    s, gate = await stock(4, max_starting=8), asyncio.Event()
    await s.deploy()
    await s.ready(4)
    before = s.fake.calls["create"]
    s.fake.fault("create", until=gate, times=9)
    waiting = [asyncio.create_task(s.deploy(env("other"))) for _ in range(4)]
    while s.fake.calls["create"] < before + 4:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)
    await s.quiet()
    assert s.fake.calls["create"] == before + 4
    gate.set()
    await asyncio.gather(*waiting)


async def test_nothing_is_begun_until_nobody_asks(stock: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CALM_SECONDS", 1.0)
    s, now = await stock(2), 0.0
    s.pool._now = lambda: now

    async def made(seconds: float) -> int:
        nonlocal now
        now = seconds
        await s.quiet()
        s.pool._news.set()
        await s.quiet()
        return len(s.pool)

    await s.deploy()
    assert await made(0.9) == 0
    await s.deploy()
    assert await made(1.8) == 0, "it was asked again meanwhile"
    assert await made(1.91) == 2
    for step in range(11):
        now = 10 + step / 2
        await s.end(await s.deploy())
    assert await made(15.1) == 2, "somebody always asks, and the longer time is over"


async def test_it_takes_half_the_room_to_start_at_most(stock: Open):
    s = await stock(8, Quay(start_time=0.005), max_starting=4)
    await s.deploy()
    s.fake.most_starting = 0
    await s.ready(8)
    assert s.fake.most_starting == 2


async def test_it_gives_room_to_run_back(stock: Open):
    s = await stock(3, max_running=4)
    await s.deploy()
    await s.ready(3)
    async with asyncio.timeout(10):
        found = await s.deploy(env("other"))
    assert found.env.name == "other"
    assert s.fake.most <= 4


class TestTwoServersShareARoom:
    """Two servers of one machine, and places for two sandboxes."""

    @pytest.fixture
    def shared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("AGENT_ENV_MAX_RUNNING", "2")
        return tmp_path / "shared"

    async def test_no_episode_waits_for_what_the_other_keeps(self, stock: Open, shared: Path):
        keeper, other = await stock(2, shared=shared), await stock(2, shared=shared)
        await keeper.end(await keeper.deploy())
        await keeper.ready(2)
        async with asyncio.timeout(20):  # all room is taken by what nobody uses
            found = [await other.deploy() for _ in range(2)]
        assert len({one.sandbox.id for one in found}) == 2
        await keeper.ready(0)

    async def test_who_gave_way_doesnt_come_back_at_once(self, stock: Open, shared: Path):
        keeper, other = await stock(2, shared=shared), await stock(2, shared=shared)
        keeper.pool._now = lambda: now
        now = 1000.0
        await keeper.end(await keeper.deploy())
        now += module.LONGEST_WAIT
        await keeper.ready(2)
        await other.end(await other.deploy())
        await other.deployer.aclose()  # so there is room, and nobody waits
        await keeper.ready(0)
        created = keeper.fake.created
        await keeper.quiet()
        assert (keeper.fake.created, len(keeper.pool)) == (created, 0)
        now += module.SHORT_REST
        await keeper.ready(2)

    async def test_what_one_makes_ahead_takes_no_room_that_the_other_waits_for(self, stock: Open, shared: Path):
        keeper, other = await stock(2, shared=shared), await stock(0, shared=shared)
        first = await other.deploy()
        second = await keeper.deploy()
        waiting = asyncio.create_task(other.deploy())
        async with asyncio.timeout(20):
            while not keeper.host.crowded:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            await keeper.end(second)  # one place is free, and the keeper would like it
            await waiting
        assert keeper.fake.created == 1
        await other.end(first)


async def test_it_gives_way_at_a_providers_own_limit(stock: Open):
    s = await stock(3, Quay(capacity=4))
    await s.deploy()
    await s.ready(3)
    async with asyncio.timeout(10):
        found = await s.deploy(env("other"))
    assert found.env.name == "other"


async def test_memory_bounds_it(stock: Open, monkeypatch: pytest.MonkeyPatch):
    s, free = await stock(8), 1256
    used = lambda: 256 * sum(kept.ready for kept in s.pool._kept)  # noqa: E731
    monkeypatch.setattr(module, "memory", lambda: Memory((free - used()) << 20, 4000 << 20))
    await s.deploy()
    await s.ready(3)
    await s.quiet()
    assert len(s.pool) == 3, "400 MiB stay free, and each takes 256"
    free = 300
    await s.ready(0)


async def test_what_failed_is_left_alone_for_a_while(stock: Open, caplog: pytest.LogCaptureFixture):
    s = await stock(4, max_starting=2)
    first = await s.deploy()
    await s.ready(4)
    await s.end(first)
    s.fake.fault("create", error=Unsupported("no more"), times=9)
    with caplog.at_level("INFO"):
        await s.deploy()
        await s.quiet()
    assert s.fake.calls["create"] == 6
    assert caplog.text.count("no deployment of 'q' could be made ahead, again in 30 s") == 1
    s.fake.heal()


async def test_only_so_many_start_at_once_and_the_queue_is_timed(stock: Open):
    s = await stock(0, Quay(start_time=0.01), max_starting=2)
    waits: list[float] = []
    await asyncio.gather(*(s.deploy(waited=waits.append) for _ in range(5)))
    assert (s.fake.most_starting, len(waits)) == (2, 5)
    assert max(waits) > 0.01


@pytest.mark.usefixtures("plenty")
class TestDefault:
    def test_it_suits_the_sessions_and_the_machine(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
        assert module.default_warm(8) == 8
        assert module.default_warm(64) == 16
        monkeypatch.setattr(module, "memory", lambda: Memory(3 << 30, 64 << 30))
        assert module.default_warm(8) == 3
        monkeypatch.setattr(module, "memory", lambda: None)
        assert module.default_warm(8) == 8

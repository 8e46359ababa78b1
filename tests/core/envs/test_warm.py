"""Deployments made ahead: fresh, alive, with time enough."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from stock import OPTIONS, Open, Quay, env

from agent_env_core.bundle import Env
from agent_env_core.envs import warm as module
from agent_env_core.envs.deployment import DeployOptions
from agent_env_core.errors import Busy, EpisodeError, Unsupported
from agent_env_core.testing.fake import CAPABILITIES


async def test_what_was_asked_for_once_is_there_the_next_time(stock: Open):
    s = await stock(2)
    assert len(s.pool) == 0, "nobody has asked for anything yet"
    cold = await s.deploy()
    ahead = await s.ready(2)
    waits: list[float] = []
    found = await s.deploy(waited=waits.append)
    assert found.sandbox.id in ahead
    assert found.sandbox.id != cold.sandbox.id
    assert (found.step_id, waits) == ("step", []), "it stood in no queue"
    await s.ready(2)


async def test_no_two_episodes_ever_get_the_same(stock: Open):
    s = await stock(3)
    seen: list[str] = []

    async def episode() -> None:
        deployment = await s.deploy()
        seen.append(deployment.sandbox.id)
        await asyncio.sleep(0)
        await s.end(deployment)

    for _ in range(5):
        await asyncio.gather(*(episode() for _ in range(8)))
    assert len(set(seen)) == len(seen) == 40


class TestSessions:
    """What an episode does first in its env is done ahead: its MCP session is open, in the role that others had."""

    OPENED = ("initialize", "notifications/initialized")

    async def test_it_is_open_when_it_is_handed_out(self, stock: Open):
        s = await stock(1)
        (await s.deploy()).session("planner")
        [ahead] = await s.ready(1)
        assert s.fake.methods[ahead] == [*self.OPENED]
        found = await s.deploy()
        session = found.session("planner")
        await session.open()
        assert (session.role, s.fake.methods[ahead]) == ("planner", [*self.OPENED, "ping"])
        assert found.session("planner") is not session, "a second turn opens its own"

    async def test_another_role_has_its_own(self, stock: Open):
        s = await stock(1)
        (await s.deploy()).session("planner")
        [ahead] = await s.ready(1)
        session = (await s.deploy()).session(None)
        await session.open()
        assert s.fake.methods[ahead] == [*self.OPENED, "ping", *self.OPENED]

    async def test_none_is_opened_where_nobody_wanted_one(self, stock: Open):
        s = await stock(1)
        await s.deploy()
        await s.ready(1)
        assert s.fake.methods == {}

    async def test_one_that_the_server_has_forgotten_is_opened_anew(self, stock: Open):
        s = await stock(1)
        (await s.deploy()).session(None)
        [ahead] = await s.ready(1)
        s.fake.forgets.add(ahead)
        found = await s.deploy()
        assert found.sandbox.id == ahead, "its env is as good as before"
        s.fake.forgets.clear()
        await found.session(None).open()
        assert s.fake.methods[ahead] == [*self.OPENED, "ping", *self.OPENED]

    async def test_one_that_cannot_be_opened_costs_nobody_a_deployment(self, stock: Open):
        s = await stock(1)
        (await s.deploy()).session(None)
        s.fake.forgets.update(f"fake-{number}" for number in range(9))  # each refuses what follows `initialize`
        [ahead] = await s.ready(1)
        assert (await s.deploy()).sandbox.id == ahead


async def test_none_are_made_where_none_are_wanted(stock: Open):
    s = await stock(0)
    await s.deploy()
    await s.quiet()
    assert (s.fake.created, len(s.pool)) == (1, 0)


async def test_a_dead_one_is_replaced_quietly(stock: Open):
    s = await stock(2)
    await s.deploy()
    first, second = await s.ready(2)
    s.fake.die(first)
    found = await s.deploy()
    assert found.sandbox.id == second
    assert first not in await s.ready(2)


@pytest.mark.parametrize(
    ("of", "options"),
    [(env("other"), OPTIONS), (env(), replace(OPTIONS, ttl=61.0)), (env(), replace(OPTIONS, memory_mb=1))],
)
async def test_another_env_or_another_wish_is_another_thing(stock: Open, of: Env, options: DeployOptions):
    s = await stock(2, Quay(capabilities=replace(CAPABILITIES, limits=frozenset({"memory_mb"}))))
    await s.deploy()
    ahead = await s.ready(2)
    found = await s.deploy(of, options)
    assert found.sandbox.id not in ahead
    await s.ready(2)
    assert {key for key, *_ in s.pool._targets().items()} == {(env().id, OPTIONS), (of.id, options)}


async def test_one_under_way_is_waited_for(stock: Open):
    s = await stock(1, Quay(start_time=0.05))
    await s.deploy()
    await s.coming()
    found = await s.deploy()
    assert s.fake.created <= 3
    assert found.sandbox.id == "fake-2"


async def test_a_caller_that_gives_up_leaves_nothing(stock: Open):
    s = await stock(1, Quay(start_time=0.02))
    await s.deploy()
    for _ in range(5):
        caller = asyncio.create_task(s.deploy())  # on a busy machine it may have one by the time it gives up
        await asyncio.sleep(0.005)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
    await s.ready(1)


async def test_one_that_fails_while_it_is_waited_for_costs_nobody_an_episode(stock: Open):
    s = await stock(1)
    await s.deploy()
    await s.ready(1)
    s.fake.fault("create", error=Busy("full"), delay=0.02)
    await s.deploy()
    await s.coming()
    await s.deploy()
    assert s.fake.calls["create"] >= 4
    assert len(s.taken) == 3


class TestTime:
    async def test_it_lives_longer_than_is_asked(self, stock: Open):
        s = await stock(1)
        await s.deploy()
        [ahead] = await s.ready(1)
        assert s.fake.sandboxes[ahead].spec.ttl == OPTIONS.ttl + module.KEEP_SECONDS
        await s.deploy()
        assert s.fake.calls["extend"] == 0

    async def test_it_is_extended_where_it_cant(self, stock: Open):
        s = await stock(1, Quay(capabilities=replace(CAPABILITIES, max_ttl=60)))
        await s.deploy()
        [ahead] = await s.ready(1)
        found = await s.deploy()
        assert (found.sandbox.id, s.fake.calls["extend"]) == (ahead, 1)

    async def test_or_none_is_made_where_that_cant_be_either(self, stock: Open):
        s = await stock(1, Quay(capabilities=replace(CAPABILITIES, max_ttl=60, extend=False)))
        await s.deploy()
        await s.quiet()
        assert len(s.pool) == 0
        await s.deploy()
        assert s.fake.created == 2

    async def test_one_that_can_no_longer_be_extended_is_replaced(self, stock: Open):
        s = await stock(1, Quay(capabilities=replace(CAPABILITIES, max_ttl=60)))
        await s.deploy()
        [ahead] = await s.ready(1)
        s.fake.fault("extend", error=Unsupported("not now"))
        assert (await s.deploy()).sandbox.id != ahead

    async def test_what_nobody_wants_for_long_is_ended(self, stock: Open):
        s = await stock(2)
        now = 0.0
        s.pool._now = lambda: now
        await s.deploy()
        await s.ready(2)
        now = module.KEEP_SECONDS + 1
        await s.ready(0)
        await s.quiet()
        assert len(s.pool) == 0, "and not made again until somebody asks"
        await s.deploy()
        await s.ready(2)


async def test_what_is_asked_for_most_there_is_most_of(stock: Open):
    s = await stock(4)
    for _ in range(3):
        await s.end(await s.deploy())
    await s.end(await s.deploy(env("other")))
    await s.ready(4)
    assert sorted(kept.key[0] for kept in s.pool._kept) == ["@local/other", "@local/q", "@local/q", "@local/q"]


async def test_closing_ends_those_that_are_coming_too(stock: Open):
    s = await stock(4, Quay(start_time=0.05))
    await s.deploy()
    await asyncio.sleep(0.02)
    await s.deployer.aclose()
    assert len(s.pool) == 0
    await s.live(1)
    assert await s.pool.take(env(), OPTIONS) is None


async def test_a_host_that_closes_is_told_as_the_episodes_end(stock: Open):
    s = await stock(0)
    await s.host.aclose()
    with pytest.raises(EpisodeError, match="closing"):
        await s.deploy()

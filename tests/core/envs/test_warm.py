"""Deployments made ahead: fresh, alive, with time enough; and out of everybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env_core.bundle import Env, EnvImage
from agent_env_core.envs import warm as module
from agent_env_core.envs.deployer import Deployer
from agent_env_core.envs.deployment import Deployment, DeployOptions
from agent_env_core.envs.http import HttpClients
from agent_env_core.errors import Busy, EpisodeError, Gone, Unsupported
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.sandbox.machine import Memory
from agent_env_core.testing.fake import CAPABILITIES, FakeProvider

CARD = {"name": "quay", "additionalInterfaces": [{"url": "/tools", "transport": "mcp"}]}
OPTIONS = DeployOptions(ttl=60.0)


def env(name: str = "q") -> Env:
    image = EnvImage(ref="docker.io/q")
    return Env(
        f"@local/{name}", name=name, type="mcp_server", environment_name="quay", env_provider_type="gateway",
        image=image, path=Path("/q"),
    )  # fmt: skip


class Quay(FakeProvider):
    """A provider whose sandboxes answer with a card for as long as they live."""

    async def image_command(self, prepared: str) -> tuple[str, ...]:
        return ("serve",)

    def answer(self, request: httpx.Request) -> httpx.Response:
        try:
            self.sandboxes[request.url.host.removesuffix(".invalid")].check()
        except (KeyError, Gone) as exc:
            raise httpx.ConnectError("nobody listens") from exc
        return httpx.Response(200, json=CARD)


class Clients(HttpClients):
    """Clients that reach no network, only these sandboxes."""

    def __init__(self, fake: Quay) -> None:
        self._fake = fake

    def open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._fake.answer))


class Stock:
    """A deployer over a fake provider, and what tests ask of it."""

    def __init__(self, warm: int, fake: Quay, **limits: Any) -> None:
        self.fake = fake
        self.host = SandboxHost(fake, **limits)
        self.deployer = Deployer(self.host, clients=Clients(fake), warm=warm)
        self.pool = self.deployer._warm
        self.taken: list[Deployment] = []

    async def deploy(self, of: Env | None = None, options: DeployOptions = OPTIONS, **more: Any) -> Deployment:
        found = await self.deployer.deploy(of or env(), step_id="step", options=options, **more)
        self.taken.append(found)
        return found

    async def end(self, deployment: Deployment) -> None:
        self.taken.remove(deployment)
        await self.host.destroy(deployment.sandbox.id)
        await deployment.close()

    async def ready(self, count: int) -> list[str]:
        """Waits until so many are there and no more are coming; their sandboxes."""
        async with asyncio.timeout(20):
            while True:
                kept = self.pool._kept
                if len(self.pool) == count == len(kept) and all(one.ready for one in kept):
                    return [one.made.result().sandbox.id for one in kept]
                await asyncio.sleep(0.002)

    async def coming(self) -> None:
        """Waits until one is under way."""
        async with asyncio.timeout(20):
            while not any(not one.ready for one in self.pool._kept):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)

    async def quiet(self) -> None:
        """Lets what has been set going come to rest."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    async def live(self, count: int) -> None:
        """Waits until so many sandboxes are left: what the provider had begun is undone behind."""
        async with asyncio.timeout(20):
            while self.host.live > count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        await self.deployer.aclose()
        for deployment in list(self.taken):
            await self.end(deployment)
        await self.live(0)
        assert self.fake.sandboxes == {}
        assert await self.host.aclose() == []


Open = Callable[..., Awaitable[Stock]]


@pytest.fixture(autouse=True)
def _plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory", lambda: Memory(64 << 30, 64 << 30))
    monkeypatch.setattr(module, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(module, "CALM_SECONDS", 0.0)


@pytest.fixture
async def stock() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def make(warm: int = 2, fake: Quay | None = None, **limits: Any) -> Stock:
            made = Stock(warm, fake or Quay(), **limits)
            stack.push_async_callback(made.aclose)
            return made

        yield make


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
    s = await stock(2, Quay(capabilities=replace(CAPABILITIES, limits=True)))
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


async def test_only_so_many_start_at_once_and_the_queue_is_timed(stock: Open):
    s = await stock(0, Quay(start_time=0.01), max_starting=2)
    waits: list[float] = []
    await asyncio.gather(*(s.deploy(waited=waits.append) for _ in range(5)))
    assert (s.fake.most_starting, len(waits)) == (2, 5)
    assert max(waits) > 0.01


async def test_a_host_that_closes_is_told_as_the_episodes_end(stock: Open):
    s = await stock(0)
    await s.host.aclose()
    with pytest.raises(EpisodeError, match="closing"):
        await s.deploy()


class TestDefault:
    def test_it_suits_the_sessions_and_the_machine(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(module.os, "cpu_count", lambda: 4)
        assert module.default_warm(8) == 8
        assert module.default_warm(64) == 16
        monkeypatch.setattr(module, "memory", lambda: Memory(3 << 30, 64 << 30))
        assert module.default_warm(8) == 3
        monkeypatch.setattr(module, "memory", lambda: None)
        assert module.default_warm(8) == 8

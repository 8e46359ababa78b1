from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import pytest

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox.limits import Limits, OwnCount, SharedCount, default_starting
from agent_env_core.sandbox.slots import Slots


@pytest.fixture(params=["own", "shared"])
def counts(request, tmp_path):
    """Makes counts of so many places; shared ones are the same places each time."""
    return lambda count: OwnCount(count) if request.param == "own" else SharedCount(Slots(tmp_path, count))


def test_the_default_goes_by_the_cores():
    assert Limits().max_starting == default_starting() >= 4
    assert Limits().max_running is None
    assert Limits(remote=True).max_starting == 64


@pytest.mark.parametrize("name", ["max_starting", "max_running"])
def test_a_limit_below_one_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        Limits(**{name: 0})


async def test_a_place_is_given_to_the_first_who_waits(counts):
    count, order = counts(1), []
    free = await count.take()

    async def wait(name):
        back = await count.take()
        order.append(name)
        back()

    waiting = []
    for name in "abc":
        waiting.append(asyncio.create_task(wait(name)))
        await asyncio.sleep(0)
    assert count.wanted()
    assert count.spare() is None
    free()
    await asyncio.gather(*waiting)
    assert order == ["a", "b", "c"]
    assert not count.wanted()


async def test_it_never_gives_more_than_there_are(counts):
    count, held, most = counts(3), 0, 0

    async def use():
        nonlocal held, most
        free = await count.take()
        held += 1
        most = max(most, held)
        await asyncio.sleep(0)
        held -= 1
        free()

    await asyncio.gather(*(use() for _ in range(30)))
    assert most == 3


async def test_whoever_is_cancelled_takes_nothing_along(counts):
    count, chance = counts(2), random.Random(5)

    async def use():
        free = await count.take()
        try:
            await asyncio.sleep(0)
        finally:
            free()

    for _ in range(8):
        users = [asyncio.create_task(use()) for _ in range(25)]
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        for user in chance.sample(users, 20):
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)
    assert not count.wanted()
    free = [count.spare() for _ in range(3)]
    assert [bool(one) for one in free] == [True, True, False]
    for one in free[:2]:
        one()


class TestPlaces:
    async def test_starting_ends_before_running(self):
        limits = Limits(max_starting=1, max_running=2)
        place = await limits.place()
        assert limits.spare_place() is None
        place.started()
        other = limits.spare_place()
        other.started()
        waiting = asyncio.create_task(limits.place())
        await asyncio.sleep(0)
        assert limits.wanted
        assert not waiting.done()
        place.free()
        place.free()
        (await waiting).free()
        other.free()

    async def test_waiting_for_room_to_run_holds_no_room_to_start(self):
        limits = Limits(max_starting=1, max_running=1)
        first = await limits.place()
        first.started()
        second = asyncio.create_task(limits.place())
        await asyncio.sleep(0)
        await first.start()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        first.free()
        limits.spare_place().free()

    async def test_leaving_gives_back_what_no_sandbox_has(self):
        limits = Limits(max_starting=1, max_running=1)
        place = await limits.place()
        place.leave()
        place = await limits.place()
        place.used = place.creating = True
        place.leave()
        assert limits.spare_place() is None, "a create under way sees to it"
        place.creating = False
        place.leave()
        assert limits.spare_place() is None, "the sandbox runs"
        place.free()
        limits.spare_place().free()


class TestSharing:
    async def test_hosts_of_one_machine_share(self, tmp_path):
        one, other = Limits(2, shared=tmp_path), Limits(2, shared=tmp_path)
        first, second = await one.place(), await other.place()
        assert one.spare_place() is None
        assert other.spare_place() is None
        first.started()
        third = await other.place()
        for place in (first, second, third):
            place.free()

    async def test_the_environment_sets_them(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AGENT_ENV_MAX_STARTING", "3")
        monkeypatch.setenv("AGENT_ENV_MAX_RUNNING", "1")
        assert Limits().max_starting == default_starting(), "those of a host of its own are its caller's"
        one, other = Limits(shared=tmp_path), Limits(shared=tmp_path)
        assert one.max_starting == 3
        place = await one.place()
        place.started()
        assert other.spare_place() is None
        place.free()

    @pytest.mark.parametrize("name", ["MAX_STARTING", "MAX_RUNNING", "CREATES_PER_SECOND"])
    @pytest.mark.parametrize("value", ["0", "-1", "many"])
    def test_what_is_no_number_is_refused(self, tmp_path, monkeypatch, name, value):
        monkeypatch.setenv(f"AGENT_ENV_{name}", value)
        with pytest.raises(ConfigError, match=f"AGENT_ENV_{name}={value} must be"):
            Limits(shared=tmp_path)

    async def test_creates_keep_a_pace(self, tmp_path, monkeypatch):
        slept = []

        async def sleep(seconds):
            slept.append(seconds)

        monkeypatch.setattr("agent_env_core.sandbox.slots.time", SimpleNamespace(monotonic=lambda: 1000.0))
        limits = Limits(shared=tmp_path, per_second=0.5)
        monkeypatch.setattr("agent_env_core.sandbox.limits.asyncio.sleep", sleep)
        for _ in range(3):
            await limits.pace()
        assert slept == pytest.approx([2.0, 4.0])

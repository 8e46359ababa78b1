from __future__ import annotations

import asyncio

import pytest

from agent_env_core.sandbox.limits import Limits, default_starting


def test_the_default_is_at_least_two():
    assert Limits().max_starting == default_starting() >= 2
    assert Limits().max_running is None


@pytest.mark.parametrize("name", ["max_starting", "max_running"])
def test_a_limit_below_one_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        Limits(**{name: 0})


async def test_starting_is_bounded():
    limits, at_once, most = Limits(max_starting=2), 0, 0

    async def start():
        nonlocal at_once, most
        async with limits.starting():
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1

    await asyncio.gather(*(start() for _ in range(10)))
    assert most == 2


async def test_running_waits_for_a_free_place():
    limits = Limits(max_running=1)
    await limits.take_running()
    waiting = asyncio.create_task(limits.take_running())
    await asyncio.sleep(0)
    assert not waiting.done()
    limits.free_running()
    await waiting


async def test_without_a_limit_nobody_waits():
    limits = Limits()
    for _ in range(1000):
        await limits.take_running()

"""Leases are renewed in time, and at once where the clock that they are written in jumps."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from agent_env_core.sandbox import clocks, renewal
from agent_env_core.sandbox.clocks import JUMP, Jumps
from agent_env_core.sandbox.renewal import Renewals


@pytest.fixture
def wall(monkeypatch):
    """The clock of leases, which a test sets: ``wall.ahead`` seconds."""
    ahead = SimpleNamespace(ahead=0.0)
    clock = SimpleNamespace(time=lambda: time.time() + ahead.ahead, monotonic=time.monotonic)
    monkeypatch.setattr(clocks, "time", clock)
    monkeypatch.setattr(renewal, "LOOK", 0.01)
    return ahead


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_jump_is_seen_once(wall, seconds):
    jumps = Jumps()
    assert not jumps.seen()
    wall.ahead = seconds
    assert jumps.seen()
    assert not jumps.seen()


def test_what_a_time_service_shifts_is_no_jump(wall):
    jumps = Jumps()
    wall.ahead = JUMP / 2
    assert not jumps.seen()


@pytest.mark.parametrize("seconds", [3 * 3600.0, -3 * 3600.0])
async def test_a_lease_is_renewed_at_once_when_the_clock_jumps(wall, seconds):
    """A laptop that slept, a clock that was set: the leases of a living owner must not look ended."""
    renewed: asyncio.Queue[tuple[str, float]] = asyncio.Queue()

    def box(id):
        async def extend(ttl):
            renewed.put_nowait((id, ttl))

        return SimpleNamespace(id=id, extend=extend)

    renewals = Renewals()
    for id in ("one", "other"):
        renewals.keep(box(id), 7200)
    await asyncio.sleep(0)  # they begin to wait
    wall.ahead = seconds
    async with asyncio.timeout(30):
        assert {await renewed.get(), await renewed.get()} == {("one", 7200), ("other", 7200)}
    await renewals.aclose()
    assert renewed.empty()


async def test_a_jump_while_a_lease_is_renewed_counts(wall):
    """What was written is of the clock as it was."""
    renewed: asyncio.Queue[float] = asyncio.Queue()

    async def extend(ttl):
        renewed.put_nowait(ttl)
        if wall.ahead == 3600.0:
            wall.ahead = 7200.0
            await renewals._jumped.wait()

    renewals = Renewals()
    renewals.keep(SimpleNamespace(id="box", extend=extend), 7200)
    await asyncio.sleep(0)  # it begins to wait
    wall.ahead = 3600.0
    async with asyncio.timeout(30):
        assert [await renewed.get(), await renewed.get()] == [7200, 7200]
    await renewals.aclose()


async def test_nothing_goes_on_after_the_last_lease():
    """Also of one that was made while its host closed, after the others were let go."""
    before = asyncio.all_tasks()
    renewals = Renewals()
    await renewals.aclose()
    for id in ("one", "other"):
        renewals.keep(SimpleNamespace(id=id), 7200)
    for id in ("one", "other"):
        renewals.stop(id)
    async with asyncio.timeout(30):
        await asyncio.gather(*(asyncio.all_tasks() - before), return_exceptions=True)

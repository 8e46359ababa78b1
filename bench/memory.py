"""What the server bears by itself: sessions on a provider that lives in memory, where a sandbox costs nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from bench.figures import Crowd, Teardown, Times
from bench.measure import timed
from bench.product import Unscored

if TYPE_CHECKING:
    from agent_env_core.client import Session

CALLS = 8
"""Tool calls of a session in a crowd."""
REMOVAL = 1.0
"""Seconds that removing a sandbox takes, where it takes long."""
ROOM = 32
"""Sessions that the server of :func:`teardown` allows, so that no episode waits for the room of one that is removed."""


def crowd(sessions: int, rounds: int) -> Crowd:
    """Opens so many sessions at once; each calls its tools, ends its turn, and is scored. Several rounds."""
    from chaos import serve

    took: list[float] = []
    ratios: list[float] = []
    problems: list[str] = []
    for number in range(rounds):
        served = asyncio.run(serve.run(number, sessions, calls=CALLS, kinds=("plain",)))
        problems += served.problems
        if not served.latencies:
            raise Unscored(f"of {sessions} sessions in memory none got to a tool call: {problems[0]}")
        times = Times.of(served.latencies)
        took += served.latencies
        ratios.append(times.p99 / times.p50)
    return Crowd(sessions, Times.of(took), tuple(ratios), tuple(problems))


def teardown(episodes: int) -> Teardown:
    """Plays episodes one after another where a removal takes :data:`REMOVAL`, and where it takes no time, in turn."""
    return asyncio.run(_teardown(episodes))


async def _teardown(episodes: int) -> Teardown:
    from agent_env_core.client import Address, Session
    from agent_env_core.client.session import close_all
    from agent_env_core.testing.fake import FakeProvider
    from chaos.envs import Counter
    from chaos.serve import serving

    long, short = FakeProvider(app=Counter), FakeProvider(app=Counter)
    slow: list[float] = []
    instant: list[float] = []
    async with serving(long, ROOM) as (there, _), serving(short, ROOM) as (here, _):
        waits, does_not = Session(Address.of(there)), Session(Address.of(here))
        try:
            for number in range(episodes + 1):  # the first opens the sessions
                long.fault("kill", delay=REMOVAL)
                for session, into in ((waits, slow), (does_not, instant)):
                    took = await asyncio.to_thread(timed, partial(_play, session))
                    if number:
                        into.append(took)
        finally:
            await asyncio.to_thread(close_all, [waits, does_not])
    return Teardown(REMOVAL, Times.of(slow), Times.of(instant))


def _play(session: Session) -> None:
    """From the reset to the reward, as a trainer's thread goes through it."""
    session.reset("train", 0)
    session.call("add", {"amount": 3})
    session.end_turn()
    if session.outcome().reward is None:
        raise Unscored("an episode in memory ended without a reward; the log above has the reason")

"""Docker's own faults: a daemon that is restarted, killed or held up in the middle of rollouts, a paused container."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos.engine import OwnEngine, own_network, why_not
from chaos.served import Ended, Gate, Server, episode, server

pytestmark = [pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(600)]

IMAGE = "python:3.11-slim"
PHASES = {"deploy", "setup", "tool", "verify"}


@pytest.fixture(scope="module")
def own_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    if why := why_not():
        pytest.skip(why)
    engine = OwnEngine(tmp_path_factory.mktemp("engine"))
    bridge = Path("/sys/class/net/docker0")  # of the machine's own engine, which would run no container without it
    there = bridge.exists()
    with own_network():
        try:
            engine.start()
            engine.load(IMAGE)
            yield engine
        finally:
            engine.close()
    assert bridge.exists() == there


@pytest.fixture
def served(own_engine: OwnEngine) -> Iterator[Server]:
    with server("docker", sessions=16, env={"DOCKER_HOST": own_engine.host}) as started:
        started.ready()
        yield started
    assert started.process.returncode in (0, -signal.SIGKILL)
    assert left(own_engine) == []


def left(engine: OwnEngine, seconds: float = 60.0) -> list[str]:
    """The containers that are still there once they had time to go."""
    ends = time.monotonic() + seconds
    while (names := engine.containers()) and time.monotonic() < ends:
        time.sleep(0.2)
    return names


async def through(served: Server, strike: Callable[[], None], mend: Callable[[], None]) -> list[Ended]:
    """Episodes that are in their middle when something strikes, and some that begin then; later ones must work."""
    gate = Gate(6)
    playing = [asyncio.create_task(episode(served.url, pause=gate)) for _ in range(6)]
    await gate.all_there()
    await asyncio.to_thread(strike)
    beginning = [asyncio.create_task(episode(served.url)) for _ in range(4)]
    gate.open()
    await asyncio.wait(playing, timeout=10)
    await asyncio.to_thread(mend)
    ends = await asyncio.gather(*playing, *beginning)
    assert [end.wrong for end in ends if end.wrong] == []
    assert {end.kind for end in ends if end.reward is None} <= PHASES
    later = await asyncio.gather(*(episode(served.url) for _ in range(6)))
    assert [end.reward for end in later] == [1.0] * 6, later
    return ends


async def test_a_daemon_that_is_restarted(own_engine: OwnEngine, served: Server) -> None:
    """It ends its containers: what was under way has no score, and what begins waits for it or has none."""
    ends = await through(served, lambda: own_engine.signal(signal.SIGTERM), own_engine.start)
    assert [end.reward for end in ends[:6]] == [None] * 6


async def test_a_daemon_that_is_killed(own_engine: OwnEngine, served: Server) -> None:
    """Its containers run on; whether they are reached is the engine's affair."""
    await through(served, lambda: own_engine.signal(signal.SIGKILL), own_engine.start)


async def test_a_daemon_that_is_held_up(own_engine: OwnEngine, served: Server) -> None:
    """It answers nothing for a while; containers run, and are ended once it answers."""
    await through(served, lambda: own_engine.signal(signal.SIGSTOP), lambda: own_engine.signal(signal.SIGCONT))


async def test_a_server_killed_while_the_daemon_is_away(own_engine: OwnEngine, served: Server) -> None:
    """Its reaper waits for the daemon; a killed daemon leaves the containers running."""
    gate = Gate(4)
    playing = [asyncio.create_task(episode(served.url, pause=gate)) for _ in range(4)]
    await gate.all_there()
    own_engine.signal(signal.SIGKILL)
    served.process.kill()
    gate.open()
    ends = await asyncio.gather(*playing)
    assert [(end.reward, end.kind) for end in ends] == [(None, "socket")] * 4
    await asyncio.to_thread(own_engine.start)
    assert left(own_engine) == []


async def test_a_container_that_is_paused(own_engine: OwnEngine, served: Server) -> None:
    """Its episode ends by its deadline; the others score, and it is removed like any other."""
    gate = Gate(4)
    playing = [asyncio.create_task(episode(served.url, pause=gate, tool_timeout=3)) for _ in range(4)]
    await gate.all_there()
    own_engine.command("pause", own_engine.containers()[0])
    gate.open()
    ends = await asyncio.gather(*playing)
    assert sorted(end.kind for end in ends) == ["", "", "", "tool"]
    assert "didn't answer within 3s" in "".join(end.why for end in ends)
    assert [end.wrong for end in ends if end.wrong] == []
    assert left(own_engine) == []

"""Memory of a server that plays for days: an episode that has ended costs nothing."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import psutil
import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.play.runner import Runner
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.steps.base import declaration
from agent_env_core.testing.fake import FakeProvider

ROOT = Path(__file__).resolve().parents[3]
AT_ONCE = 10
MOST = 8 << 20
"""Bytes that may come on top over all the episodes; to keep 1,000 of them would take some 40 MiB."""


async def played(runner: Runner, name: str, count: int) -> None:
    """Plays a task ``count`` times, some at once: a call of a tool, a reply, a score."""
    spec = next(spec for spec in runner.specs.values() if spec.task.name == name)

    async def one() -> None:
        episode = await spec.start(runner)
        turn = await episode.next_turn()
        assert turn is not None
        async with turn.tools() as tools:
            await tools.list()
            assert not (await tools.call("add", {"amount": 3})).is_error
        await turn.end("done" * 1000)
        assert await episode.result() == {"grade": 1.0}
        await episode.wait_finished()

    for _ in range(count // AT_ONCE):
        await asyncio.gather(*(one() for _ in range(AT_ONCE)))


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_memory_stays_flat_over_1000_episodes(counter_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from chaos.envs import Counter

    runner = Runner(load_bundle(counter_bundle, declaration), sandbox=SandboxHost(FakeProvider(app=Counter)))
    async with runner:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]

        def used() -> list[int]:
            gc.collect()
            return [process.memory_info().rss for process in processes]

        await played(runner, "one-turn", 100)
        before, descriptors, tasks = used(), processes[0].num_fds(), len(asyncio.all_tasks())
        await played(runner, "one-turn", 1000)
        grown = [after - ago for after, ago in zip(used(), before, strict=True)]
        assert max(grown) < MOST, grown
        assert processes[0].num_fds() <= descriptors
        assert len(asyncio.all_tasks()) <= tasks
        assert not runner.episodes
        assert runner.host.live == 0

"""Where an episode's time goes: what the product's episodes record of themselves, beside the same parts by hand."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_env_core.play.runner import Runner
    from bench.floor import Floor
    from bench.product import Prepared

NAMES = ("queue", "deploy", "setup", "play", "tool", "verify", "teardown")
"""In an episode's order; ``tool`` is a part of ``play``. The floor has no queue, and reads what a verifier would."""


@dataclass(frozen=True)
class Phases:
    """Medians in seconds, by the names of :data:`NAMES`, of episodes of which ``sessions`` are played side by side."""

    sessions: int
    n: int
    product: Mapping[str, float]
    floor: Mapping[str, float]


def phases(prepared: Prepared, floor: Floor, sessions: int, rounds: int) -> Phases:
    """Plays rounds of episodes in this process, without a trainer and a server, and as many by hand, in turn."""
    return asyncio.run(_phases(prepared, floor, sessions, rounds))


async def _phases(prepared: Prepared, floor: Floor, sessions: int, rounds: int) -> Phases:
    from agent_env_core.bundle import load_bundle
    from agent_env_core.play.runner import Runner
    from agent_env_core.steps.base import declaration

    ours: list[Mapping[str, float]] = []
    by_hand: list[Mapping[str, float]] = []
    async with Runner(load_bundle(prepared.bundle.path, declaration), sandbox=prepared.provider) as runner:
        for _ in range(rounds):
            ours += await asyncio.gather(*(_play(runner, prepared) for _ in range(sessions)))
            by_hand += await asyncio.to_thread(_by_hand, floor, sessions)
    return Phases(sessions, len(ours), _medians(ours), _medians(by_hand))


async def _play(runner: Runner, prepared: Prepared) -> Mapping[str, float]:
    episode = await runner.specs[prepared.task_id].start(runner)
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        await tools.call(prepared.script.tool, prepared.script.arguments)
    await turn.end()
    await episode.result()
    await episode.wait_finished()
    return episode.timings


def _by_hand(floor: Floor, sessions: int) -> list[Mapping[str, float]]:
    with ThreadPoolExecutor(sessions) as threads:
        return [played.phases for played in threads.map(floor.play, [sessions] * sessions)]


def _medians(episodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(episode.get(name, 0.0) for episode in episodes) for name in NAMES}

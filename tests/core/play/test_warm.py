"""Episodes in deployments that were made ahead: nothing of one is ever seen by another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from waiting import eventually

from agent_env_core.bundle import Bundle
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner

Open = Callable[..., Awaitable[Runner]]
Begin = Callable[[Runner, str], Awaitable[Episode]]
ROUNDS, SIDE_BY_SIDE = 2, 3


@pytest.mark.parametrize("provider", ["process", pytest.param("docker", marks=pytest.mark.docker)])
async def test_no_state_and_no_id_is_seen_twice(bundle: Bundle, open_runner: Open, begin: Begin, provider: str):
    runner = await open_runner(bundle, sandbox=provider, warm=2)
    sandboxes: list[str] = []

    async def played() -> None:
        episode = await begin(runner, "one-turn-far")
        turn = await episode.next_turn()
        assert turn is not None
        async with turn.tools() as tools:
            assert (await tools.call("add", {"amount": 4}, timeout=30)).text == '{"value": 14}', "its task starts at 10"
        await turn.end("done")
        await episode.result()
        sandboxes.extend(deployment.sandbox.id for deployment in episode.run.envs.values())
        await episode.wait_finished()

    for _ in range(ROUNDS):
        await asyncio.gather(*(played() for _ in range(SIDE_BY_SIDE)))
        await eventually(lambda: runner.deployer.warm >= 1)
    assert len(sandboxes) == len(set(sandboxes)) == ROUNDS * SIDE_BY_SIDE


async def test_an_episode_that_finds_one_waits_for_no_deploy(
    bundle: Bundle, open_runner: Open, begin: Begin, play: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    runner = await open_runner(bundle, warm=1)
    episode = await begin(runner, "one-turn-far")
    await play(episode, 5)
    await episode.wait_finished()
    pool = runner.deployer._warm
    await eventually(lambda: [kept for kept in pool._kept if kept.ready])
    create, goes_on = runner.host.create, asyncio.Event()

    async def held_up(*args: Any, **keywords: Any) -> Any:
        await goes_on.wait()
        return await create(*args, **keywords)

    monkeypatch.setattr(runner.host, "create", held_up)
    episode = await begin(runner, "one-turn-far")
    await play(episode, 5)
    goes_on.set()
    await episode.wait_finished()

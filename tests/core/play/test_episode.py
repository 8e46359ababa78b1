"""Episodes on every provider: they score, they fail with a reason, and nothing is left of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_env_core.errors import EpisodeError
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner

pytestmark = pytest.mark.asyncio(loop_scope="module")

Steps = list[dict[str, Any]]
Open = Callable[..., Awaitable[Runner]]
Begin = Callable[[Runner, str], Awaitable[Episode]]
Play = Callable[..., Awaitable[dict[str, float]]]


async def test_an_episode_scores(runner: Runner, begin: Begin, play: Play):
    episode = await begin(runner, "one-turn-far")
    assert await play(episode, 5) == {"grade": 0.75}
    assert await episode.next_turn() is None
    await episode.wait_finished()
    assert episode.finished
    assert set(episode.timings) == {"queue", "deploy", "setup", "play", "tool", "verify", "teardown"}
    assert all(episode.timings[name] > 0 for name in ("deploy", "play", "tool", "verify", "teardown"))
    assert episode.timings["tool"] < episode.timings["play"]
    (verification,) = episode.run.verifications.values()
    assert verification.results[1]["reply"] == "done"


async def test_turns_follow_one_another_in_one_world(runner: Runner, begin: Begin, play: Play):
    episode = await begin(runner, "two-turns")
    first = await episode.next_turn()
    assert first is not None
    assert (first.prompt, first.system_prompt) == ("Bring the counter to 5.", "You operate a counter.")
    assert (first.step_id, first.agent, first.number, first.of) == ("first", "default-agent", 1, 2)
    async with first.tools() as tools:
        await tools.call("add", {"amount": 5})
    await first.end("five")
    await first.end("ignored")
    second = await episode.next_turn()
    assert second is not None
    assert (second.number, second.system_prompt) == (2, "You operate a counter. Answer in one word.")
    async with second.tools() as tools:
        assert (await tools.call("peek")).text == '{"value": 5}'
        await tools.call("add", {"amount": 3})
    with pytest.raises(
        EpisodeError, match="the turn 'second' of the agent 'default-agent' is still open; end it first"
    ):
        await episode.result()
    await second.end()
    assert await episode.result() == {"grade": 1.0}
    with pytest.raises(EpisodeError, match="the turn 'second' is over"):
        async with second.tools():
            pass
    assert [(r.prompt_id, r.response) for r in episode.run.responses] == [("first", "five"), ("second", "")]


async def test_tools_are_offered_as_the_task_allows(runner: Runner, begin: Begin):
    for name, hint, peek, role in [("tool-access", True, False, ""), ("role", False, True, "auditor")]:
        episode = await begin(runner, name)
        turn = await episode.next_turn()
        assert turn is not None
        async with turn.tools() as tools:
            offered = {tool.name: tool for tool in await tools.list()}
            assert ("hint" in offered, "peek" in offered) == (hint, peek)
            assert offered["add"].description == "Adds to the counter."
            assert offered["add"].input_schema["required"] == ["amount"]
            assert offered["add"].server == "counter"
            assert (await tools.call("whoami")).text == role
            unknown = await tools.call("peek" if hint else "nope")
            assert unknown.failure == "unknown"
            assert "this turn offers: add, " in unknown.text
        await episode.abandon("seen enough")


async def test_a_tool_that_fails_is_a_result(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        failed = await tools.call("add", {"amount": "many"})
        assert (failed.failure, failed.text) == ("tool", "amount must be a whole number, not 'many'")
        refused = await tools.call("add", {"amount": float("nan")})
        assert refused.failure == "refused"
        assert "can't be sent as JSON" in refused.text
        big = await tools.call("big", {"size": 3_000_000})
        assert len(big.text) < 1_100_000
        assert big.text.endswith("[1951424 bytes of text left out]")
        assert not (await tools.call("add", {"amount": 3})).is_error
    await turn.end()
    assert await episode.result() == {"grade": 1.0}


async def test_a_call_past_its_deadline_ends_the_episode_and_no_other(runner: Runner, begin: Begin, play: Play):
    hung, other = await begin(runner, "one-turn"), await begin(runner, "one-turn")
    turn = await hung.next_turn()
    assert turn is not None
    said = "hang didn't answer within 0.3s, and the episode ended, since what the call does may still be under way"
    async with turn.tools() as tools:
        with pytest.raises(EpisodeError) as caught:
            await tools.call("hang", timeout=0.3)
    assert (caught.value.phase, caught.value.reason) == ("tool", said)
    for ask in (hung.next_turn, hung.result):
        with pytest.raises(EpisodeError) as caught:
            await ask()
        assert caught.value.reason == said
    await hung.wait_finished()
    assert await play(other, 3) == {"grade": 1.0}


async def test_an_env_that_dies_in_a_call_is_told_with_its_last_words(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    turn = await episode.next_turn()
    assert turn is not None
    began = time.monotonic()
    async with turn.tools() as tools:
        with pytest.raises(EpisodeError, match=r"(?s)crash: the env 'counter' ended: .*7.*as it was told to") as caught:
            await tools.call("crash")
    assert time.monotonic() - began < 30  # it is noticed, and not waited for
    assert (caught.value.phase, caught.value.retryable) == ("tool", True)
    await episode.wait_finished()


async def test_an_env_killed_between_two_calls(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        await tools.call("add", {"amount": 1})
        (deployment,) = episode.run.envs.values()
        await runner.host.provider.kill(deployment.sandbox.id)
        with pytest.raises(EpisodeError, match="add: the env 'counter' ended") as caught:
            await tools.call("add", {"amount": 1})
    assert caught.value.phase == "tool"
    with pytest.raises(EpisodeError, match="add: the env"):
        await episode.result()
    await episode.wait_finished()


async def test_an_env_that_dies_before_it_is_scored_gives_no_score(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    turn = await episode.next_turn()
    assert turn is not None
    (deployment,) = episode.run.envs.values()
    await runner.host.provider.kill(deployment.sandbox.id)
    await turn.end("done")
    with pytest.raises(EpisodeError, match=r"counter-verifier/verify.py: the env 'counter' ended") as caught:
        await episode.result()
    assert (caught.value.phase, caught.value.retryable) == ("verify", True)


async def test_abandoned_in_mid_deploy(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    waiting = asyncio.create_task(episode.next_turn())
    await asyncio.sleep(0)
    await episode.abandon("changed my mind")
    with pytest.raises(EpisodeError, match="the episode was abandoned: changed my mind"):
        await waiting
    await episode.abandon("again")
    assert episode.finished
    with pytest.raises(EpisodeError, match="changed my mind"):
        await episode.next_turn()


async def test_an_abandoned_turn_is_closed(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        hanging = asyncio.create_task(tools.call("hang"))
        await asyncio.sleep(0.05)
        await episode.abandon("the trainer left")
        with pytest.raises(EpisodeError, match="the trainer left"):
            await hanging
        with pytest.raises(EpisodeError, match="the trainer left"):
            await tools.call("add", {"amount": 1})
    await turn.end()


async def test_an_outcome_that_is_known_is_kept(runner: Runner, begin: Begin, play: Play):
    episode = await begin(runner, "one-turn")
    assert await play(episode, 3) == {"grade": 1.0}
    await episode.abandon("too late")
    assert await episode.result() == {"grade": 1.0}


async def test_cancelling_a_caller_cancels_the_call_alone(runner: Runner, begin: Begin, play: Play):
    episode = await begin(runner, "one-turn")
    for ask in (episode.next_turn, episode.result, episode.wait_finished):
        call = asyncio.create_task(ask())  # type: ignore[arg-type]
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await play(episode, 3) == {"grade": 1.0}


async def test_the_score_is_not_kept_waiting_by_teardown(
    runner: Runner, begin: Begin, play: Play, monkeypatch: pytest.MonkeyPatch
):
    gate = asyncio.Event()
    destroy = runner.host.destroy

    async def slow(sandbox_id: str) -> bool:
        await gate.wait()
        return await destroy(sandbox_id)

    monkeypatch.setattr(runner.host, "destroy", slow)
    episode = await begin(runner, "one-turn")
    assert await play(episode, 3) == {"grade": 1.0}
    assert not episode.finished
    assert runner.episodes == {episode}
    gate.set()
    await episode.wait_finished()
    assert not runner.episodes


async def test_an_episode_whose_loop_closes_clears_away(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    assert await episode.next_turn() is not None
    assert episode._driver is not None
    episode._driver.cancel()
    await episode.wait_finished()
    with pytest.raises(EpisodeError, match="the event loop is closing"):
        await episode.result()


async def test_a_turn_can_be_bounded(runner: Runner):
    spec = next(iter(runner.specs.values()))
    episode = await type(spec).from_task(spec.task, turn_timeout=1.0).start(runner)
    turn = await episode.next_turn()
    assert turn is not None
    with pytest.raises(EpisodeError, match=r"the turn 'play' didn't end within 1s"):
        await episode.next_turn()
    assert not turn.open


@pytest.mark.parametrize("count", [8, pytest.param(32, marks=pytest.mark.slow, id="32")])
async def test_many_at_once_twice_in_a_row(runner: Runner, begin: Begin, play: Play, count: int):
    for _ in range(2):
        episodes = [await begin(runner, "one-turn") for _ in range(count)]
        scores = await asyncio.gather(*(play(episode, 1 + n % 3) for n, episode in enumerate(episodes)))
        assert [s["grade"] for s in scores] == [pytest.approx((1 + n % 3) / 3) for n in range(count)]
        await asyncio.gather(*(episode.wait_finished() for episode in episodes))
        assert runner.host.live == 0


async def test_abandoned_as_soon_as_it_is_started(runner: Runner, begin: Begin):
    episode = await begin(runner, "one-turn")
    async with asyncio.timeout(60):
        await episode.abandon("at once")
    with pytest.raises(EpisodeError, match="at once"):
        await episode.result()
    assert episode.timings["deploy"] == 0

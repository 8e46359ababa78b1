"""What a task, its env or its verifier does wrong ends the episode with a reason, unscored."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from waiting import eventually

from agent_env_core.bundle import Bundle
from agent_env_core.errors import EpisodeError, Unavailable
from agent_env_core.hookspecs import hookimpl
from agent_env_core.play.episode import Episode
from agent_env_core.play.events import EpisodeEvent
from agent_env_core.play.runner import Runner
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Sandbox, SandboxSpec
from agent_env_core.sandbox.creates import LOST_TRIES
from agent_env_core.sandbox.limits import Place

Steps = list[dict[str, Any]]
Open = Callable[..., Awaitable[Runner]]
Begin = Callable[[Runner, str], Awaitable[Episode]]
Play = Callable[..., Awaitable[dict[str, float]]]
Make = Callable[..., Bundle]
Usual = Callable[..., Steps]


def directive(**fields: Any) -> dict[str, Any]:
    return {"directives": [{"service": "counter", "uri": "urn:counter:load/v1", "args": {}, **fields}]}


async def failure(episode: Episode) -> EpisodeError:
    """Plays without doing anything; how it failed."""

    async def idle() -> None:
        while (turn := await episode.next_turn()) is not None:
            async with turn.tools():
                pass
            await turn.end()
        await episode.result()

    with pytest.raises(EpisodeError) as caught:
        await idle()
    await episode.wait_finished()
    return caught.value


@pytest.mark.parametrize(
    ("name", "within", "said"),
    [
        ("verifier-raise", 60, r"raised ValueError: the verifier was told to raise \(verify\.py, line \d+\)"),
        ("verifier-hang", 1, r"didn't return within 1s"),
        ("verifier-nonsense", 60, r": score of row 0 must be a finite number, and is NaN"),
        ("verifier-exit", 60, r"ended its process with exit code 3 before it returned"),
    ],
)
async def test_a_broken_verifier_gives_no_score(
    bundle: Bundle, open_runner: Open, begin: Begin, name: str, within: int, said: str
):
    runner = await open_runner(bundle, verifier_timeout=within)
    error = await failure(await begin(runner, name))
    assert error.phase == "verify"
    assert re.fullmatch(r"counter-verifier/verify\.py ?" + said, error.reason)


async def test_a_verifier_may_print_a_gigabyte(bundle: Bundle, open_runner: Open, begin: Begin, play: Play):
    runner = await open_runner(bundle, verifier_timeout=60)
    assert await play(await begin(runner, "verifier-shout"), 3) == {"grade": 1.0}


async def test_an_env_that_dies_at_its_start_is_noticed_at_once(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin
):
    runner = await open_runner(make_bundle({"t": steps()}, start="die"))
    began = time.monotonic()
    error = await failure(await begin(runner, "t"))
    assert time.monotonic() - began < 30  # an env may take 300 s to be ready
    assert error.phase == "deploy"
    assert error.reason.startswith("the env 'counter' ended before it was ready: ")
    assert "refuses to start, as it was told to" in error.reason


async def test_abandoned_while_its_env_never_answers(make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin):
    runner = await open_runner(make_bundle({"t": steps()}, start="never"))
    episode = await begin(runner, "t")
    await eventually(lambda: runner.host.live)
    await episode.abandon("too slow")
    await eventually(lambda: not runner.host.live)


async def test_a_slow_start_is_waited_for(make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin, play: Play):
    runner = await open_runner(make_bundle({"t": steps()}, start="0.5"))
    episode = await begin(runner, "t")
    assert await play(episode, 3) == {"grade": 1.0}
    assert episode.timings["deploy"] > 0.5


async def test_a_server_of_another_name(make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin):
    edits = [("envs/counter/server.py", 'NAME = os.environ.get("ENVIRONMENT_NAME", "counter")', 'NAME = "other"')]
    runner = await open_runner(make_bundle({"t": steps()}, edits=edits))
    error = await failure(await begin(runner, "t"))
    assert (error.phase, error.reason.partition(":")[0]) == (
        "deploy",
        "the env 'counter' should be 'counter', and its card says 'other'",
    )


ADVERTISED = "it advertises: urn:counter:load/v1"


@pytest.mark.parametrize(
    ("load", "phase", "said"),
    [
        (directive(args={"bogus": 1}), "setup", "POST /agentenv/ext/load of the env 'counter' answered 400: .*bogus"),
        (directive(uri="urn:x/v1"), "setup", f"the server 'counter' advertises no extension 'urn:x/v1'; {ADVERTISED}"),
        (directive(args={"listing": "twice"}), "turn", "the env 'counter' lists the tool 'add' twice"),
    ],
)
async def test_setup_that_fails(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin, load: dict[str, Any], phase: str, said: str
):
    runner = await open_runner(make_bundle({"t": steps(load=load)}))
    error = await failure(await begin(runner, "t"))
    assert error.phase == phase
    assert re.match(said, error.reason)


async def test_what_is_not_advertised_may_be_tolerated(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin, play: Play
):
    tolerant = {**directive(service="*", uri="urn:x/v1"), "tolerate_unadvertised": True}
    runner = await open_runner(make_bundle({"t": steps(load=tolerant)}))
    episode = await begin(runner, "t")
    assert await play(episode, 3) == {"grade": 1.0}
    assert [note["uri"] for note in episode.run.metadata["server_config_skipped"]] == ["urn:x/v1"]


async def test_a_tolerant_step_may_fail(make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin, play: Play):
    tolerant = {**directive(args={"bogus": 1}), "fail_task_on_error": False}
    runner = await open_runner(make_bundle({"t": steps(load=tolerant)}))
    episode = await begin(runner, "t")
    assert await play(episode, 3) == {"grade": 1.0}
    (failed,) = episode.run.metadata["failed_steps"]
    assert (failed["step_id"], failed["step_type"], failed["is_fatal"]) == ("load", "apply_server_config", False)
    assert failed["error_type"] == "EpisodeError"
    assert "can't load {'bogus': 1}" in failed["error"]
    assert failed["duration_seconds"] >= 0
    assert datetime.fromisoformat(failed["started_at_utc"]).tzinfo is not None


async def test_a_tolerant_prompt_does_not_score_an_env_in_an_unknown_state(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin
):
    runner = await open_runner(make_bundle({"t": steps(play={"fail_task_on_error": False})}))
    episode = await begin(runner, "t")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        with pytest.raises(EpisodeError, match="hang didn't answer within"):
            await tools.call("hang", timeout=0.2)
    with pytest.raises(EpisodeError, match="hang didn't answer within"):
        await episode.result()


async def test_a_prompts_own_deadline_bounds_no_episode(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin, play: Play
):
    """A trainer generates for a whole batch before it goes on with any turn of it."""
    runner = await open_runner(make_bundle({"t": steps(play={"timeout_seconds": 0.001})}))
    assert await play(await begin(runner, "t"), 3) == {"grade": 1.0}


async def test_a_fatal_failure_closes_a_turn_that_is_open_beside_it(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin
):
    late = {"id": "bad", "type": "apply_server_config", "env_id": "counter", "depends_on": ["agent"]}
    runner = await open_runner(make_bundle({"t": steps(more=[{**late, **directive(args={"bogus": 1})}])}))
    episode = await begin(runner, "t")
    turn = await episode.next_turn()
    assert turn is not None
    with pytest.raises(EpisodeError, match="answered 400"):
        await episode.next_turn()
    assert not turn.open
    await episode.wait_finished()


async def test_steps_that_come_too_early(make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin):
    runner = await open_runner(
        make_bundle({
            "load-first": [steps()[1], steps()[0], *steps()[2:]],
            "twice": steps(more=[{"id": "again", "type": "deploy_env", "env_id": "counter"}]),
            "wrong-prompt": steps(grade={"prompt_id": "nobody"}),
            "wrong-step": steps(agent={"env_step_id": "other"}),
        })
    )  # fmt: skip
    reasons = {name: (await failure(await begin(runner, name))).reason for name in ("load-first", "twice")}
    assert "the env 'counter' isn't deployed (deployed: none)" in reasons["load-first"]
    assert reasons["twice"] == "the env 'counter' is already deployed, by step 'env'"
    assert "no prompt of that id" in (await failure(await begin(runner, "wrong-prompt"))).reason
    assert "was deployed by 'env'" in (await failure(await begin(runner, "wrong-step"))).reason


class Recorder:
    """A plugin that keeps events; a broken one beside it must not matter."""

    def __init__(self) -> None:
        self.events: list[EpisodeEvent] = []

    @hookimpl
    def agent_env_episode_event(self, event: EpisodeEvent) -> None:
        self.events.append(event)


class Broken:
    @hookimpl
    def agent_env_episode_event(self, event: EpisodeEvent) -> None:
        raise ValueError("this recorder is broken")


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder, broken = Recorder(), Broken()
    for plugin in (recorder, broken):
        plugins().manager.register(plugin, name=f"{type(plugin).__name__}-{id(plugin)}")
    yield recorder
    for plugin in (recorder, broken):
        plugins().manager.unregister(plugin)


async def test_plugins_are_told_of_everything(
    bundle: Bundle, open_runner: Open, begin: Begin, play: Play, recorder: Recorder, caplog: pytest.LogCaptureFixture
):
    runner = await open_runner(bundle)
    episode = await begin(runner, "one-turn")
    await play(episode, 3)
    await episode.wait_finished()
    told = [(event.kind, event.data.get("step")) for event in recorder.events]
    assert told == [
        ("started", None),
        *[(kind, step) for step in ("env", "load", "agent") for kind in ("step_started", "step_ended")],
        ("step_started", "play"),
        ("turn_opened", "play"),
        ("tool_called", "play"),
        ("turn_ended", "play"),
        ("step_ended", "play"),
        ("step_started", "grade"),
        ("step_ended", "grade"),
        ("ended", None),
        ("finished", None),
    ]
    ended, finished = recorder.events[-2:]
    assert ended.data == {"scores": {"grade": 1.0}}
    assert finished.data["timings"] == episode.timings
    assert {event.episode_id for event in recorder.events} == {episode.id}
    assert [event.at for event in recorder.events] == sorted(event.at for event in recorder.events)
    assert [line for line in caplog.messages if "this recorder is broken" in line] == caplog.messages[:1]


async def test_plugins_are_told_of_a_failure(
    make_bundle: Make, steps: Usual, open_runner: Open, begin: Begin, recorder: Recorder
):
    runner = await open_runner(make_bundle({"t": steps(load=directive(args={"bogus": 1}))}))
    await failure(await begin(runner, "t"))
    step = next(event for event in recorder.events if event.kind == "step_ended" and event.data["step"] == "load")
    assert "answered 400" in step.data["error"]
    ended = next(event for event in recorder.events if event.kind == "ended")
    assert (ended.phase, ended.data["retryable"]) == ("setup", False)


async def test_what_the_infrastructure_loses_is_no_score(
    bundle: Bundle, open_runner: Open, begin: Begin, play: Play, monkeypatch: pytest.MonkeyPatch
):
    """With an oracle for a policy, one sandbox in ten lost, all that is scored is scored 1."""
    runner = await open_runner(bundle)
    create, calls = runner.host.create, itertools.count(1)

    async def flaky(spec: SandboxSpec, *, place: Place) -> Sandbox:
        if next(calls) % 10 == 0:
            raise Unavailable("the engine lost it")
        return await create(spec, place=place)

    monkeypatch.setattr(runner.host, "create", flaky)
    episodes = [await begin(runner, "one-turn") for _ in range(10)]
    outcomes = await asyncio.gather(*(play(episode, 3) for episode in episodes), return_exceptions=True)
    assert [outcome for outcome in outcomes if isinstance(outcome, dict)] == [{"grade": 1.0}] * 9
    (failure,) = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert isinstance(failure, EpisodeError)
    assert (failure.phase, failure.retryable) == ("deploy", True)
    assert "the engine lost it" in failure.reason


async def test_tries_of_a_create_do_not_multiply(
    bundle: Bundle, open_runner: Open, begin: Begin, monkeypatch: pytest.MonkeyPatch
):
    """What always fails is asked as often as the one layer that tries again says, whatever stands above it."""
    runner = await open_runner(bundle)
    asked: list[SandboxSpec] = []

    async def lost(spec: SandboxSpec) -> Sandbox:
        asked.append(spec)
        raise Unavailable("the engine doesn't answer")

    monkeypatch.setattr(runner.host.provider, "create", lost)
    error = await failure(await begin(runner, "one-turn"))
    assert (error.phase, error.retryable, len(asked)) == ("deploy", True, LOST_TRIES)

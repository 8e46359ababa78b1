"""The client's session against a server that misbehaves as it's told to."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agent_env_core.client import Address, ForeignTools, Offered, Outcome, Session, ToolAnswer
from agent_env_core.errors import AgentEnvError, CapacityError, EpisodeError


@pytest.fixture
def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which nothing answers any more: no other has to reach anybody within so short a time."""
    monkeypatch.setattr("agent_env_core.client.player.REDIAL_SECONDS", 0.3)


async def forever() -> None:
    await asyncio.Event().wait()


async def one_episode(peer: Any) -> None:
    await peer.episode()


def test_an_episode(scripted: Any, connect: Any) -> None:
    server = scripted(one_episode)
    session = connect(server, tool_timeout=5, reset_timeout=50)
    session.reset("train", 3, "@local/task")
    assert session.call("look", {"at": "it"}) == ToolAnswer("a view")
    assert session.outcome() == Outcome(0.5, {"grade": 0.5})
    assert session.outcome().reward == 0.5
    _, reset, call, end = server.heard
    keys = reset["data"]
    assert (keys.pop("session"), keys.pop("episode_id")) > ("", "")
    assert keys == {"split": "train", "index": 3, "task_id": "@local/task", "tool_timeout": 5, "reset_timeout": 50}
    assert call["data"] == {"type": "call_tool", "tool_name": "look", "arguments": {"at": "it"}}
    assert end["data"] == {"type": "call_tool", "tool_name": "end_turn", "arguments": {}}


def test_making_a_session_touches_no_network() -> None:
    Session(Address.of("http://nowhere.invalid:1")).close()


def test_a_reset_returns_while_its_deploy_goes_on(scripted: Any, connect: Any) -> None:
    deployed = threading.Event()

    async def slow(peer: Any) -> None:
        await peer.welcome()
        reset = await peer.heard()
        assert reset["type"] == "reset"
        await asyncio.to_thread(deployed.wait)
        await peer.observe(metadata={"prompt": "go"})
        await peer.answer("late")
        await peer.socket.wait_closed()

    session = connect(scripted(slow))
    session.reset("train", 0)  # the server hasn't answered, and can't before the next line
    deployed.set()
    assert session.call("look", {}).text == "late"


def test_a_full_server_is_told_at_once_in_the_documented_words(scripted: Any, connect: Any) -> None:
    async def full(peer: Any) -> None:
        refusal = {"message": "Server at capacity: 8/8", "code": "CAPACITY_REACHED", "max_sessions": 8}
        await peer.say({"type": "error", "data": refusal})

    server = scripted(full)
    session = connect(server)
    for _ in range(2):  # and again, for it's the first reset that finds out
        with pytest.raises(CapacityError) as refusal:
            session.reset("train", 0)
        assert str(refusal.value) == (
            f"the server at {server.url} is at its limit of 8 sessions at once, and the trainer holds one per rollout"
            " it generates at once: serve the bundle with MAX_CONCURRENT_ENVS (or max_concurrent_envs=) at least that"
            " many, or generate fewer rollouts at once"
        )


def test_a_call_that_is_never_answered_ends_the_episode(
    scripted: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mute(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.socket.wait_closed()

    server = scripted(mute, one_episode)
    session = connect(server, tool_timeout=0.1)
    monkeypatch.setattr("agent_env_core.client.player.Player.slack", 0.1)
    session.reset("train", 0)
    reason = "look didn't answer within 0.1s, and the episode ended, since what the call does may still be under way"
    for ask in (lambda: session.call("look", {}), session.outcome, session.turn, session.end_turn):
        with pytest.raises(EpisodeError) as lost:
            ask()
        assert (lost.value.reason, lost.value.retryable) == (reason, True)
    assert server.connections == 1  # no other session is opened inside an episode
    monkeypatch.undo()  # what is answered has its usual time
    session.reset("train", 0)
    assert session.call("look", {}).text == "a view"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "it broke off"),
        (1012, "it is shutting down"),
        (1011, "it was silent"),
        (4000, "it closed with code 4000"),
    ],
)
def test_a_socket_that_ends_in_mid_call(scripted: Any, connect: Any, code: int | None, words: str) -> None:
    async def cut(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.heard()
        if code is None:
            peer.socket.transport.abort()
        else:
            await peer.socket.close(code)

    server = scripted(cut, one_episode)
    session = connect(server)
    session.reset("train", 0)
    with pytest.raises(EpisodeError, match=f"the connection to {server.url} was lost: {words}"):
        session.call("look", {})
    with pytest.raises(EpisodeError, match=words):
        session.outcome()
    assert server.connections == 1
    session.reset("train", 0)
    assert session.call("look", {}).text == "a view"
    assert session.outcome().reward == 0.5
    keys = [message["data"]["session"] for message in server.heard if message["type"] == "reset"]
    assert len(set(keys)) == 2


@pytest.mark.usefixtures("soon_given_up")
def test_a_server_that_is_gone_leaves_episodes_unscored(scripted: Any, connect: Any) -> None:
    server = scripted(one_episode)
    session = connect(server)
    session.reset("train", 0)
    session.call("look", {})
    server.stop()
    with pytest.raises(EpisodeError, match="was lost"):
        session.outcome()
    session.reset("train", 0)
    with pytest.raises(EpisodeError, match=f"nothing answers at {server.url}"):
        session.outcome()


@pytest.mark.usefixtures("soon_given_up")
def test_a_server_that_was_never_there(connect: Any, scripted: Any) -> None:
    server = scripted(one_episode)
    server.stop()
    session = connect(server)
    session.reset("train", 0)
    with pytest.raises(EpisodeError, match=f"nothing answers at {server.url}"):
        session.call("look", {})


def test_a_server_that_is_back_plays_on(scripted: Any, connect: Any) -> None:
    async def leave(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.socket.close(1012)

    async def full(peer: Any) -> None:
        await peer.say({"type": "error", "data": {"code": "CAPACITY_REACHED", "max_sessions": 1}})

    session = connect(scripted(leave, full, one_episode))
    session.reset("train", 0)
    with pytest.raises(EpisodeError):
        session.outcome()
    session.reset("train", 1)  # its old session isn't noticed to be gone yet: patience, not a refusal
    assert session.call("look", {}).text == "a view"


def test_an_unreadable_answer_ends_the_connection(scripted: Any, connect: Any) -> None:
    async def babble(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.heard()
        await peer.socket.send("{not json")
        await peer.socket.wait_closed()

    session = connect(scripted(babble))
    session.reset("train", 0)
    with pytest.raises(EpisodeError, match="was lost: JSONDecodeError"):
        session.call("look", {})


def test_a_failed_deploy_has_the_servers_reason(scripted: Any, connect: Any) -> None:
    async def failing(peer: Any) -> None:
        await peer.welcome()
        await peer.heard()
        told = {"status": "error", "error": "the image is broken", "phase": "deploy", "retryable": True, "task": None}
        await peer.observe(done=True, metadata=told)
        await peer.socket.wait_closed()

    session = connect(scripted(failing))
    session.reset("train", 0)
    with pytest.raises(EpisodeError) as failed:
        session.outcome()
    assert (failed.value.phase, failed.value.reason, failed.value.retryable) == ("deploy", "the image is broken", True)


def test_scores_without_a_reward(scripted: Any, connect: Any) -> None:
    async def no_reward(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.heard()
        told = {"scores": {"grade": 1.0}, "status": "error", "error": "no reward: it raised"}
        await peer.observe(done=True, metadata=told)
        await peer.socket.wait_closed()

    session = connect(scripted(no_reward))
    session.reset("train", 0)
    assert session.outcome() == Outcome(None, {"grade": 1.0}, "no reward: it raised")


def test_the_last_turns_end_is_not_waited_for(scripted: Any, connect: Any) -> None:
    scored = threading.Event()

    async def verifying(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn("one", of=2)
        await peer.heard()
        turn = {"number": 2, "of": 2}
        await peer.observe(result={"prompt": "two", "system_prompt": "anew"}, metadata={"turn": turn})
        await peer.heard()
        await asyncio.to_thread(scored.wait)
        await peer.observe(done=True, reward=1.0, metadata={"scores": {"grade": 1.0}})
        await peer.socket.wait_closed()

    server = scripted(verifying)
    session = connect(server)
    session.reset("train", 0)
    second = session.end_turn("first reply")
    assert (second.prompt, second.system_prompt, second.last) == ("two", "anew", True)
    assert session.end_turn("second reply") is None  # the verifier can't be done before the next line
    assert session.end_turn("again") is None
    assert session.call("look", {}) == ToolAnswer("The episode has ended.", is_error=True)
    scored.set()
    assert session.outcome().reward == 1.0
    replies = [message["data"]["arguments"] for message in server.heard if message["type"] == "step"]
    assert replies == [{"response": "first reply"}, {"response": "second reply"}]


def test_turns_left_open_are_ended_with_empty_replies(scripted: Any, connect: Any) -> None:
    async def three_turns(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn(of=3)
        for number in (2, 3):
            await peer.heard()
            await peer.observe(result={"prompt": "more"}, metadata={"turn": {"number": number, "of": 3}})
        await peer.score()
        await peer.socket.wait_closed()

    server = scripted(three_turns)
    session = connect(server)
    session.reset("train", 0)
    session.conclude()
    assert session.outcome().reward == 1.0
    assert [message["data"]["arguments"] for message in server.heard if message["type"] == "step"] == [{}, {}, {}]


def test_a_task_with_other_tools_is_foreign(scripted: Any, connect: Any) -> None:
    session = connect(scripted(one_episode), tools=Offered("another", ("add", "peek")))
    session.reset("train", 0, "@local/task")
    for ask in (lambda: session.call("add", {}), session.outcome):
        with pytest.raises(ForeignTools, match=r"@local/task offers the tools look .*was shown add, peek"):
            ask()


def test_any_thread_and_any_loop_may_ask(scripted: Any, connect: Any) -> None:
    session = connect(scripted(one_episode))
    results: list[Any] = []

    async def inside_a_loop() -> None:
        results.append(session.call("look", {}))

    for work in (
        lambda: session.reset("train", 0),
        lambda: asyncio.run(inside_a_loop()),
        lambda: results.append(session.outcome().reward),
    ):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)
    assert results == [ToolAnswer("a view"), 0.5]


def test_thirty_two_sessions_share_one_thread(scripted: Any, connect: Any) -> None:
    server = scripted(one_episode)
    before = threading.active_count()
    sessions = [connect(server) for _ in range(32)]
    for session in sessions:
        session.reset("train", 0)
    assert threading.active_count() <= before + 1
    assert [session.call("look", {}).text for session in sessions] == ["a view"] * 32


def test_a_refused_token(connect: Any) -> None:
    from websockets.sync.server import serve

    def refuse(connection: Any, request: Any) -> Any:
        return connection.respond(401, "no")

    with serve(lambda socket: None, "127.0.0.1", 0, process_request=refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.socket.getsockname()[1]
        session = connect(f"http://127.0.0.1:{port}")
        with pytest.raises(AgentEnvError, match="asks for a token: pass token=, or set AGENT_ENV_TOKEN"):
            session.reset("train", 0)
        server.shutdown()
        thread.join(10)


def test_a_session_that_is_forgotten_is_closed(scripted: Any) -> None:
    closed = threading.Event()

    async def watch(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.socket.wait_closed()
        closed.set()

    session = Session(Address.of(scripted(watch).url))
    session.reset("train", 0)
    session.turn()
    del session
    assert closed.wait(10)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["tool_timeout", "reset_timeout"])
def test_a_timeout_that_is_none(name: str, value: float) -> None:
    timeouts: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name}="):
        Session(Address.of("http://localhost:1"), **timeouts)


def test_a_reset_is_quick(scripted: Any, connect: Any) -> None:
    took = []
    for _ in range(3):
        session = connect(scripted(one_episode))
        session.reset("train", 0)
        session.call("look", {})
        session.outcome()
        began = time.monotonic()
        session.reset("train", 1)
        took.append(time.monotonic() - began)
    assert min(took) < 0.25  # some milliseconds; a busy machine may take its time once

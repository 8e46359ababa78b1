"""What goes wrong ends one episode, unscored and with a reason; the session and the server go on."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until
from websockets.sync.client import connect

from agent_env_core.errors import EpisodeError
from agent_env_core.server.app import service_for
from agent_env_core.server.rollout import Deadlines, Rollout

MISSED = "hang didn't answer within 0.3s, and the episode ended, since what the call does may still be under way"


def call(session: Any, tool: str, **arguments: Any) -> Any:
    return session.step({"type": "call_tool", "tool_name": tool, "arguments": arguments})


def works(session: Any) -> bool:
    """Whether the session plays an episode to its score."""
    session.reset(split="train", index=0)
    call(session, "add", amount=3)
    return call(session, "end_turn").reward == 1.0


def nothing_runs(server: Any) -> None:
    """Waits until every sandbox of the server is gone."""
    until(lambda: server.service.engine.live == 0)


def abandon(server: Any, key: str, **body: str) -> httpx.Response:
    """Asks for the end of a session's episode."""
    url = f"{server.url}/agent-env/v1/sessions/{key}/abandon"
    return httpx.post(url, json=body, trust_env=False, timeout=30)


def test_a_tool_that_hangs(counter: Any) -> None:
    with counter.session() as session:
        session.reset(split="train", index=0, tool_timeout=0.3)
        began = time.monotonic()
        missed = call(session, "hang")
        assert time.monotonic() - began < 30  # a call's usual deadline is 60 s
        assert (missed.done, missed.reward) == (True, None)
        assert missed.observation["error"] == {"error_type": "timeout", "message": MISSED}
        metadata = missed.observation["metadata"]
        assert (metadata["status"], metadata["error"], metadata["phase"]) == ("error", MISSED, "tool")
        assert metadata["task"]["name"] == "one-turn"
        assert "call reset" in call(session, "peek").observation["metadata"]["error"]
        assert works(session)
    nothing_runs(counter)


def test_an_env_that_dies_between_two_calls(counter: Any) -> None:
    with counter.session() as session:
        session.reset(split="train", index=0)
        call(session, "add", amount=1)
        died = call(session, "crash")
        assert (died.done, died.reward) == (True, None)
        assert died.observation["error"]["error_type"] == "transport_error"
        assert died.observation["metadata"]["error"]
        assert works(session)
    nothing_runs(counter)


@pytest.mark.parametrize("name", ["verifier-raise", "verifier-exit", "verifier-nonsense"])
def test_a_verifier_that_fails(counter: Any, name: str) -> None:
    rows = httpx.post(f"{counter.url}/counter/tasks", json={"split": "all"}, trust_env=False).json()["tasks"]
    with counter.session() as session:
        session.reset(task_id=next(row["id"] for row in rows if row["name"] == name))
        ended = call(session, "end_turn")
        assert (ended.done, ended.reward) == (True, None)
        metadata = ended.observation["metadata"]
        assert (metadata["status"], metadata["phase"]) == ("error", "verify")
        assert metadata["error"]
        assert works(session)


def test_an_env_that_never_answers(serve: Any, changed_counter: Any) -> None:
    server = serve(changed_counter(start="never"))
    with server.session() as session:
        began = time.monotonic()
        missed = session.reset(split="train", index=0, reset_timeout=0.5)
        assert time.monotonic() - began < 30  # a reset's usual deadline is 600 s
        assert (missed.done, missed.reward) == (True, None)
        assert missed.observation["metadata"]["error"] == "the episode wasn't ready within 0.5s"
        assert missed.observation["metadata"]["phase"] == "deploy"
    nothing_runs(server)


def test_an_env_that_ends_at_its_start(serve: Any, changed_counter: Any) -> None:
    server = serve(changed_counter(start="die"))
    with server.session() as session:
        failed = session.reset(split="train", index=0)
        assert failed.done
        assert failed.observation["metadata"]["phase"] == "deploy"
    nothing_runs(server)


def test_a_socket_cut_in_mid_call_frees_its_session_at_once(serve: Any, caplog: Any) -> None:
    server = serve(max_concurrent_envs=1)
    with connect(f"ws{server.url.removeprefix('http')}/ws", proxy=None) as socket:
        socket.send(json.dumps({"type": "reset", "data": {"split": "train", "index": 0}}))
        assert json.loads(socket.recv())["data"]["done"] is False
        socket.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": "hang", "arguments": {}}}))
        until(lambda: server.service.sessions.all()[0].state.step_count == 1)
        socket.socket.shutdown(2)  # no goodbye: as when the trainer's machine goes away
    until(lambda: not server.service.sessions.all())
    nothing_runs(server)
    with server.session() as session:
        assert works(session)
    assert "Traceback" not in caplog.text


def test_a_deploying_episode_is_abandoned_over_http(serve: Any, changed_counter: Any) -> None:
    server = serve(changed_counter(start="never"))
    answered: list[Any] = []
    with server.session() as session:
        keys = {"split": "train", "index": 0, "session": "a-key", "episode_id": "mine"}
        resetting = threading.Thread(target=lambda: answered.append(session.reset(**keys)))
        resetting.start()
        until(lambda: server.service.engine.live)
        assert abandon(server, "another-key").status_code == 404
        assert abandon(server, "a-key", episode_id="another").json() == {"abandoned": False}
        assert abandon(server, "a-key", episode_id="mine", reason="enough").json() == {"abandoned": True}
        assert abandon(server, "a-key", episode_id="mine").json() == {"abandoned": False}
        resetting.join()
        assert answered[0].done
        assert answered[0].observation["metadata"]["error"] == "the episode was abandoned: enough"
    nothing_runs(server)


def test_an_episode_abandoned_before_it_began_never_begins(counter: Any) -> None:
    engine, place = counter.service.engine, counter.service.catalog.find("train", 0)

    async def abandoned_first() -> None:
        rollout = Rollout(engine, place, Deadlines())
        rollout.abandon("too late")
        with pytest.raises(EpisodeError, match="abandoned: too late"):
            await rollout.open()
        assert not any(runner.episodes for runner in engine._runners.values())

    engine.call(abandoned_first(), seconds=60, phase="deploy")


def test_a_full_server_says_so_in_openenvs_own_words(serve: Any) -> None:
    server = serve(max_concurrent_envs=1)
    with server.session() as session:
        session.reset(split="train", index=0)
        with connect(f"ws{server.url.removeprefix('http')}/ws", proxy=None) as second:
            refusal = json.loads(second.recv(timeout=60))
        assert refusal["data"]["code"] == "CAPACITY_REACHED"
        assert (refusal["data"]["active_sessions"], refusal["data"]["max_sessions"]) == (1, 1)
        assert call(session, "peek").observation["result"]["data"] == '{"value": 0}'


def test_a_reserved_tool_name_is_refused_with_the_fix(serve: Any, changed_counter: Any, tmp_path: Path) -> None:
    bundle = changed_counter()
    source = bundle / "envs" / "counter" / "server.py"
    source.write_text(source.read_text(encoding="utf-8").replace('"peek": (peek', '"close": (peek'), encoding="utf-8")
    server = serve(bundle)
    with server.session() as session:
        refused = session.reset(split="train", index=0)
        assert refused.done
        assert "the env offers tools named close" in refused.observation["metadata"]["error"]
        assert "modify_env_tool_access" in refused.observation["metadata"]["error"]
    entries = httpx.get(f"{server.url}/agent-env/v1/toolsets", trust_env=False).json()["toolsets"]
    assert all("tools named close" in entry["error"] for entry in entries)


def test_slow_tools_of_some_sessions_hold_up_nobody(counter: Any) -> None:
    """What one session's env does must not starve the server."""
    keys = [f"slow-{number}" for number in range(6)]
    with ExitStack() as stack:
        sessions = [stack.enter_context(counter.session()) for _ in keys]
        for session, key in zip(sessions, keys, strict=True):
            session.reset(split="train", index=0, session=key, episode_id=key)
        hanging = [threading.Thread(target=call, args=(session, "hang")) for session in sessions]
        for thread in hanging:
            thread.start()
        until(lambda: all(one.state.step_count for one in counter.service.sessions.all()))
        for _ in range(20):
            assert httpx.get(f"{counter.url}/health", trust_env=False, timeout=30).status_code == 200
        with counter.session() as other:
            assert works(other)
        assert all(thread.is_alive() for thread in hanging), "the slow ones were under way all the time"
        for key in keys:
            abandon(counter, key, episode_id=key)
        for thread in hanging:
            thread.join()


async def test_an_engine_that_is_not_running_says_why(counter_bundle: Path) -> None:
    engine = service_for(counter_bundle, sandbox="process").engine
    with pytest.raises(EpisodeError, match="its app's lifespan was never started"):
        engine.call(asyncio.sleep(0), seconds=1, phase="deploy")


def test_a_sandbox_that_never_starts(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A create that hangs is bounded by the reset's deadline, as everything before the first turn is."""
    server = serve()

    async def hang(spec: object, *, place: object) -> None:
        await asyncio.Event().wait()

    with server.session() as session, monkeypatch.context() as patched:
        patched.setattr(server.service.engine._host, "create", hang)
        missed = session.reset(split="train", index=0, reset_timeout=0.3)
        assert (missed.done, missed.reward) == (True, None)
        assert missed.observation["metadata"]["error"] == "the episode wasn't ready within 0.3s"
        assert missed.observation["metadata"]["phase"] == "deploy"
    with server.session() as session:
        assert works(session)


@pytest.mark.parametrize("key", [["a", "list"], 7, None])
def test_a_session_key_that_is_none_costs_no_session(serve: Any, key: object) -> None:
    server = serve(max_concurrent_envs=1)
    with connect(f"ws{server.url.removeprefix('http')}/ws", proxy=None) as socket:
        socket.send(json.dumps({"type": "reset", "data": {"split": "train", "index": 0, "session": key}}))
        assert json.loads(socket.recv())["data"]["done"] is False
        assert len(server.service.sessions) == 1
        socket.socket.shutdown(2)
    until(lambda: not server.service.sessions.all())
    with server.session() as session:
        assert works(session)

"""What a session does when it is interrupted: by arguments that can't be sent, by resets, by its end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agent_env_core.client import Address, Session, close_all, loop
from agent_env_core.client.connection import Connection
from agent_env_core.client.player import Player


async def test_a_message_broken_off_while_it_is_sent_ends_the_connection() -> None:
    class Stuck:
        transport = type("Transport", (), {"abort": lambda self: None})()

        async def send(self, text: str) -> None:
            await asyncio.Event().wait()

    connection = Connection(Stuck(), Address.of("http://localhost:1"))  # type: ignore[arg-type]
    question = asyncio.create_task(connection.ask({}, seconds=5, phase="tool", missed="it was late"))
    await asyncio.sleep(0)
    question.cancel()
    await asyncio.gather(question, return_exceptions=True)
    assert connection.lost is not None
    assert not connection.busy


def test_arguments_that_are_no_json_leave_the_episode_as_it_was(scripted: Any) -> None:
    async def play(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.answer("a view")
        await peer.score(1.0)
        await peer.socket.wait_closed()

    session = Session(Address.of(scripted(play).url), tool_timeout=5)
    session.reset("train", 0)
    with pytest.raises(TypeError, match="not JSON serializable"):
        session.call("look", {"at": object()})
    assert session.call("look", {}).text == "a view"
    assert session.outcome().reward == 1.0
    session.close()


def test_an_episode_is_abandoned_though_its_successor_is_given_up_too(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: list[str] = []
    asked, abandoned = threading.Event(), threading.Event()

    def post(address: Address, url: str, body: Any) -> bool:
        posted.append(body["episode_id"])
        (abandoned if asked.is_set() else asked).set()
        return len(posted) > 1  # at first the server hasn't begun with the episode

    async def deaf(peer: Any) -> None:
        await peer.welcome()
        await peer.heard()
        begun.set()
        await peer.socket.wait_closed()

    monkeypatch.setattr("agent_env_core.client.player._post", post)
    begun = threading.Event()
    server = scripted(deaf)
    session = Session(Address.of(server.url))
    session.reset("train", 0)
    assert begun.wait(10)
    session.reset("train", 1)
    assert asked.wait(10)
    session.reset("train", 2)
    assert abandoned.wait(10)
    assert posted == [server.heard[1]["data"]["episode_id"]] * 2
    session.close()


def test_a_session_opens_again_after_its_end(scripted: Any) -> None:
    async def play(peer: Any) -> None:
        await peer.welcome()
        await peer.open_turn()
        await peer.score(1.0)
        await peer.socket.wait_closed()

    server = scripted(play)
    session = Session(Address.of(server.url))
    for _ in range(2):
        session.reset("train", 0)
        assert session.outcome().reward == 1.0
        session.close()
        session.close()
    assert server.connections == 2
    resets = [message["data"]["session"] for message in server.heard if message["type"] == "reset"]
    assert resets[0] != resets[1]


def test_sessions_close_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    barrier = asyncio.Barrier(2)

    async def close(self: Player) -> None:
        await barrier.wait()  # one after another they would never get past it

    monkeypatch.setattr(Player, "close", close)
    monkeypatch.setattr("agent_env_core.client.session.CLOSE_SECONDS", 10)
    loop.client_loop()
    sessions = [Session(Address.of("http://localhost:1")) for _ in range(2)]
    for session in sessions:
        assert session._mine
    close_all(sessions)
    assert barrier.n_waiting == 0


def test_a_close_while_the_process_ends_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Address.of("http://localhost:1"))
    assert session._mine
    monkeypatch.setattr(loop, "_running", None)  # as after the loop's own exit handler
    session.close()
    assert loop._running is None

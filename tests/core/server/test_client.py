"""Our own client against our own server: giving episodes up, and giving sessions back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from waiting import until

from agent_env_core.client import Address, Session
from agent_env_core.errors import CapacityError, EpisodeError


def test_the_next_reset_abandons_a_deploy_that_hangs(serve: Any, changed_counter: Any) -> None:
    server = serve(changed_counter(start="never"))
    session = Session(Address.of(server.url))
    session.reset("train", 0)
    until(lambda: server.service.engine.live)
    began = time.monotonic()
    session.reset("train", 1)
    assert time.monotonic() - began < 30  # the deploy would take the whole of the reset's 600 s
    until(lambda: server.service.sessions.all()[0].state.index == 1)
    until(lambda: server.service.engine.live == 1)
    session.close()
    until(lambda: server.service.engine.live == 0)
    assert len(server.service.sessions) == 0


def test_a_reset_in_mid_call_goes_on_with_the_next_task(counter: Any) -> None:
    session = Session(Address.of(counter.url))
    session.reset("train", 0)
    session.turn()
    failed: list[EpisodeError] = []

    def hang() -> None:
        try:
            session.call("hang", {})
        except EpisodeError as exc:
            failed.append(exc)

    thread = threading.Thread(target=hang)
    thread.start()
    until(lambda: any(one.state.step_count for one in counter.service.sessions.all()))
    session.reset("train", 0)
    assert session.call("peek", {}).text == '{"value": 0}'
    thread.join()
    assert "abandoned: the trainer went on" in failed[0].reason
    session.close()


def test_closing_gives_the_session_back(serve: Any) -> None:
    server = serve(max_concurrent_envs=1)
    first, second = Session(Address.of(server.url)), Session(Address.of(server.url))
    first.reset("train", 0)
    with pytest.raises(CapacityError, match="at its limit of 1 sessions"):
        second.reset("train", 0)
    first.close()

    def free() -> bool:
        try:
            second.reset("train", 0)
        except CapacityError:
            return False
        return True

    until(free)
    assert second.call("add", {"amount": 3}).text == '{"value": 3}'
    assert second.outcome().reward == 1.0
    second.close()


def test_a_client_that_is_stopped_for_good_frees_its_place(serve: Any) -> None:
    """Many sessions, one after another, leave neither sessions nor sandboxes."""
    server = serve(max_concurrent_envs=2)
    for _ in range(10):
        session = Session(Address.of(server.url))
        until(lambda session=session: opened(session))
        session.turn()
        session.close()
    until(lambda: not server.service.sessions.all() and server.service.engine.live == 0)


def opened(session: Session) -> bool:
    try:
        session.reset("train", 0)
    except CapacityError:
        return False
    return True

"""Sessions whose socket is opened before their first reset."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env_core.client import ToolAnswer
from agent_env_core.client.connection import held
from agent_env_core.errors import CapacityError


async def one_episode(peer: Any) -> None:
    await peer.episode()


def test_the_socket_of_a_session_that_dialled_is_the_one_its_reset_uses(scripted: Any, connect: Any) -> None:
    server = scripted(one_episode)
    session = connect(server)
    session.dial()
    session.dial()
    session.reset("train", 0)
    assert session.call("look", {}) == ToolAnswer("a view")
    session.dial()
    assert session.outcome().reward == 0.5
    assert server.connections == 1


def test_a_session_that_dialled_and_is_closed_holds_no_socket(scripted: Any, connect: Any) -> None:
    session = connect(scripted(one_episode))
    before = held.total()
    session.dial()
    session.close()
    assert held.total() == before
    session.reset("train", 0)
    assert session.call("look", {}) == ToolAnswer("a view")
    assert session.outcome().reward == 0.5


def test_a_dial_that_fails_is_told_by_the_reset(scripted: Any, connect: Any) -> None:
    async def full(peer: Any) -> None:
        await peer.say({"type": "error", "data": {"code": "CAPACITY_REACHED", "max_sessions": 2}})

    session = connect(scripted(full))
    session.dial()
    with pytest.raises(CapacityError, match="limit of 2 sessions"):
        session.reset("train", 0)

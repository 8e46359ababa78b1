from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from agent_env_core.verifiers.record import Run, RunRecordUnavailable, read_run, write_turn

ASKED = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.fixture
def run() -> Run:
    later = ASKED + timedelta(seconds=5)
    turns = [
        write_turn(prompt="go", sent_at=ASKED, reply="done", replied_at=later, agent="a"),
        write_turn(prompt="on", sent_at=later, reply=None, replied_at=None, agent="a"),
    ]
    return read_run(json.loads(json.dumps(turns)))


def test_what_was_said(run: Run):
    first, second = run.turns
    assert (first.number, first.message.role, first.message.text, first.message.author) == (1, "user", "go", None)
    assert first.reply is not None
    assert (first.reply.role, first.reply.text, first.reply.author, first.reply.turn) == ("agent", "done", "a", 1)
    assert first.reply.sent_at - first.message.sent_at == timedelta(seconds=5)
    assert first.reply.parts == ({"kind": "text", "text": "done"},)
    assert second.reply is None


def test_turns_by_number(run: Run):
    assert run.turn(2) is run.turns[1]
    assert run.as_of(1).turns == run.turns[:1]
    with pytest.raises(LookupError, match="there is no turn 3; the run has 2"):
        run.turn(3)


def test_nothing_fires_where_there_are_no_triggers(run: Run):
    assert run.firings() == run.firings("x", env="e") == run.turns[0].firings == ()
    with pytest.raises(LookupError, match="no trigger 'x' fired"):
        run.firing("x")


def test_what_is_not_recorded_says_so(run: Run):
    with pytest.raises(RunRecordUnavailable, match="env_clock") as caught:
        _ = run.turns[0].message.env_clock
    assert caught.value.source == "env_clock"
    assert run.unavailable == {"env_clock": caught.value.reason}
    assert isinstance(caught.value, LookupError)

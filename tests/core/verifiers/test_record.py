"""The ``run`` that a verifier gets, after its way through JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent_env_core.verifiers.record import Firing, Run, RunRecordUnavailable, read_run, write_message, write_run

ASKED = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return ASKED + timedelta(seconds=seconds)


def make(**record: Any) -> Run:
    return read_run(json.loads(json.dumps(write_run(**record))))


@pytest.fixture
def run() -> Run:
    return make(
        turns=[
            (write_message("go", ASKED, "human_agent"), write_message("done", after(5), "a")),
            (
                write_message(
                    "on", after(10), "human_agent", user_sim={"mood": "calm"}, env_clock={"E": NOON, "F": None}
                ),
                None,
            ),
        ],
        firings=[
            Firing("late", "env:E", 0, after(11), NOON, ok=False, provoked_by={"tool": "add"}),
            Firing("early", "env:E", 0, after(-1)),
            Firing("early", "env:F", 0, after(10)),
        ],
        envs={"quay": "E", "E": "E", "F": "F"},
    )


def test_what_was_said(run: Run):
    first, second = run.turns
    message = first.message
    assert (first.number, message.turn, message.role, message.text) == (1, 1, "user", "go")
    assert (message.author, message.sent_at, message.parts) == ("human_agent", ASKED, ({"kind": "text", "text": "go"},))
    assert (message.written_by_triggers, message.user_sim, message.env_clock) == ((), None, None)
    reply = first.reply
    assert reply is not None
    assert (reply.role, reply.text, reply.author, reply.turn, reply.sent_at) == ("agent", "done", "a", 1, after(5))
    assert second.reply is None
    assert second.message.user_sim == {"mood": "calm"}
    assert second.message.env_clock == {"E": NOON, "F": None}


def test_parts_are_kept_beside_the_text():
    parts = [{"kind": "text", "text": "look"}, {"kind": "data", "data": {"x": 1}}]
    (turn,) = make(turns=[(write_message("look", ASKED, "u", parts=parts), None)]).turns
    assert (turn.message.text, turn.message.parts) == ("look", tuple(parts))


def test_turns_by_number(run: Run):
    assert run.turn(2) is run.turns[1]
    for number in (0, 3, -1):
        with pytest.raises(LookupError, match=f"there is no turn {number}; the run has 2"):
            run.turn(number)


def test_firings_are_placed_in_turns(run: Run):
    assert [(f.trigger_id, f.source, f.turn) for f in run.firings()] == [
        ("early", "env:E", 0), ("early", "env:F", 2), ("late", "env:E", 2),
    ]  # fmt: skip
    assert [f.trigger_id for f in run.turn(2).firings] == ["early", "late"]
    assert run.turn(1).firings == ()
    late = run.firing("late")
    assert late is not None
    assert (late.at, late.virtual_time, late.ok, late.provoked_by) == (after(11), NOON, False, {"tool": "add"})
    assert run.firing("never") is None


def test_firings_of_one_env_by_its_name_or_id(run: Run):
    assert [f.at for f in run.firings("early", env="quay")] == [after(-1)]
    assert run.firings(env="E") == run.firings(env="quay")
    assert run.firing("early", env="F") == run.firings()[1]
    with pytest.raises(RunRecordUnavailable, match="env:other: no triggers were registered with it"):
        run.firings(env="other")


def test_the_run_as_it_stood(run: Run):
    before = run.as_of(1)
    assert before.turns == run.turns[:1]
    assert [f.turn for f in before.firings()] == [0]
    assert run.as_of(0).turns == ()
    assert run.as_of(2) is run
    with pytest.raises(ValueError, match=r"as_of\(-1\)"):
        run.as_of(-1)


def test_a_run_without_anything():
    run = make()
    assert (run.turns, run.firings(), run.unavailable) == ((), (), {})


def test_what_is_not_known_says_so():
    message = write_message("go", ASKED, "u")
    run = make(turns=[(message, None)], envs={"E": "E", "F": "F"}, unavailable={"env:E": "the log was lost"})
    for query in (run.firings, lambda: run.firings(env="E"), lambda: run.firing("x"), lambda: run.turn(1).firings):
        with pytest.raises(RunRecordUnavailable, match="env:E: the log was lost") as caught:
            query()
        assert (caught.value.source, caught.value.reason) == ("env:E", "the log was lost")
        assert isinstance(caught.value, LookupError)
    assert run.firings(env="F") == ()
    with pytest.raises(RunRecordUnavailable, match="conversation: gone"):
        _ = make(unavailable={"conversation": "gone"}).turns

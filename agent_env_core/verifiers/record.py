"""The record of a run that a verifier gets when its ``verify`` has a parameter named ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

UNRECORDED: Mapping[str, str] = {"env_clock": "agent-env keeps no clock for envs"}
"""What a record holds nothing of, and why."""


class RunRecordUnavailable(LookupError):
    """A query needs something that was not recorded.

    Attributes:
        source: What is missing.
        reason: Why.
    """

    def __init__(self, source: str, reason: str) -> None:
        self.source = source
        self.reason = reason
        super().__init__(f"{source}: {reason}")


@dataclass(frozen=True)
class Message:
    """What was said to the agent, or by it.

    Attributes:
        role: ``user`` or ``agent``.
        text: The text.
        sent_at: When, with its time zone.
        author: The agent's name, on what it said.
        turn: The turn's number, from 1.
        written_by_triggers: Whether triggers wrote it; there are none here.
        user_sim: What a simulated user recorded; there is none here.
    """

    role: str
    text: str
    sent_at: datetime
    author: str | None
    turn: int
    written_by_triggers: bool = False
    user_sim: None = None

    @property
    def parts(self) -> tuple[Mapping[str, str], ...]:
        """The text as message parts."""
        return ({"kind": "text", "text": self.text},)

    @property
    def env_clock(self) -> datetime:
        """The env's own time: never recorded here."""
        raise RunRecordUnavailable("env_clock", UNRECORDED["env_clock"])


@dataclass(frozen=True)
class RunTurn:
    """One exchange: a prompt, and the reply where there was one."""

    number: int
    message: Message
    reply: Message | None
    firings: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Run:
    """The conversation of one prompt.

    Attributes:
        turns: In order, numbered from 1.
    """

    turns: tuple[RunTurn, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=lambda: dict(UNRECORDED))

    def turn(self, number: int) -> RunTurn:
        """The turn of that number.

        Raises:
            LookupError: There is none.
        """
        for turn in self.turns:
            if turn.number == number:
                return turn
        raise LookupError(f"there is no turn {number}; the run has {len(self.turns)}")

    def firings(self, trigger_id: str | None = None, *, env: str | None = None) -> tuple[Any, ...]:
        """What triggers fired: nothing, since no task that is played here has triggers."""
        return ()

    def firing(self, trigger_id: str) -> Any:
        """The firing of one trigger.

        Raises:
            LookupError: Always; see :meth:`firings`.
        """
        raise LookupError(f"no trigger {trigger_id!r} fired")

    def as_of(self, number: int) -> Run:
        """The run as it stood when turn ``number`` ended."""
        return Run(tuple(turn for turn in self.turns if turn.number <= number), self.unavailable)


def read_run(turns: list[dict[str, Any]]) -> Run:
    """A run from what crossed the process boundary: for each turn ``message`` and ``reply``, see :func:`write_turn`."""

    def message(number: int, role: str, data: Mapping[str, Any] | None) -> Message | None:
        if data is None:
            return None
        return Message(role, data["text"], datetime.fromisoformat(data["sent_at"]), data["author"], number)

    read = []
    for number, turn in enumerate(turns, start=1):
        said = message(number, "user", turn["message"])
        assert said is not None
        read.append(RunTurn(number, said, message(number, "agent", turn["reply"])))
    return Run(tuple(read))


def write_turn(
    *, prompt: str, sent_at: datetime, reply: str | None, replied_at: datetime | None, agent: str
) -> dict[str, Any]:
    """One exchange as JSON."""
    answer = None
    if reply is not None and replied_at is not None:
        answer = {"text": reply, "sent_at": replied_at.isoformat(), "author": agent}
    return {"message": {"text": prompt, "sent_at": sent_at.isoformat(), "author": None}, "reply": answer}

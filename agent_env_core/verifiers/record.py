"""The record of a run that a verifier gets when its ``verify`` has a parameter named ``run``.

It crosses into the verifier's process as JSON: :func:`write_run` and :func:`write_message` make that, :func:`read_run`
reads it. Names and meanings of the fields are those of the published format's ``Run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

CONVERSATION = "conversation"


class RunRecordUnavailable(LookupError):
    """A query needs something that was not recorded.

    Attributes:
        source: What is missing: ``conversation``, or the source of firings, ``env:<env>``.
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
        turn: The turn's number, from 1.
        role: ``user`` or ``agent``.
        text: The text.
        sent_at: When, with its time zone.
        author: The agent's name, or the simulated user's.
        written_by_triggers: The triggers that wrote it; none here, where triggers act on envs only.
        user_sim: What else a simulated user said with it, beside ``message`` and ``done``.
        parts: The same as message parts.
        env_clock: Each env's virtual time then; None where no env keeps one.
    """

    turn: int
    role: str
    text: str
    sent_at: datetime | None
    author: str | None = None
    written_by_triggers: tuple[str, ...] = ()
    user_sim: Mapping[str, Any] | None = None
    parts: tuple[Mapping[str, Any], ...] = ()
    env_clock: Mapping[str, datetime | None] | None = None


@dataclass(frozen=True)
class Firing:
    """One time that a trigger fired, or failed to.

    Attributes:
        trigger_id: The trigger.
        source: ``env:<env id>``.
        turn: The turn it fell in; 0 is before the first message.
        at: When.
        virtual_time: The env's own time then, if it keeps one.
        ok: Whether it fired, rather than failed.
        provoked_by: The call that set it off, if one did.
    """

    trigger_id: str
    source: str
    turn: int
    at: datetime
    virtual_time: datetime | None = None
    ok: bool = True
    provoked_by: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class RunTurn:
    """One exchange: a message, and the reply where there was one."""

    number: int
    message: Message
    reply: Message | None
    _firings: tuple[Firing, ...] = field(default=(), repr=False)
    _unavailable: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def firings(self) -> tuple[Firing, ...]:
        """What fired during the turn, oldest first.

        Raises:
            RunRecordUnavailable: Some of it isn't known.
        """
        _need(self._unavailable, self._unavailable)
        return self._firings


@dataclass(frozen=True)
class Run:
    """The conversation of one prompt, and what triggers fired.

    Attributes:
        unavailable: What isn't known, and why; a query that needs it raises.
    """

    _turns: tuple[RunTurn, ...] = ()
    _firings: tuple[Firing, ...] = ()
    _envs: Mapping[str, str] = field(default_factory=dict, repr=False)  # names and ids of envs that keep firings -> id
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def turns(self) -> tuple[RunTurn, ...]:
        """In order, numbered from 1."""
        _need(self.unavailable, [CONVERSATION])
        return self._turns

    def turn(self, number: int) -> RunTurn:
        """The turn of that number.

        Raises:
            LookupError: There is none.
        """
        turns = self.turns
        if not 1 <= number <= len(turns):
            raise LookupError(f"there is no turn {number}; the run has {len(turns)}")
        return turns[number - 1]

    def firings(self, trigger_id: str | None = None, *, env: str | None = None) -> tuple[Firing, ...]:
        """What fired, oldest first.

        Args:
            trigger_id: Only this trigger.
            env: Only those of this env: its name in the bundle, or its id.

        Raises:
            RunRecordUnavailable: It isn't known, or the env has no triggers.
        """
        source = None if env is None else f"env:{self._envs.get(env, env)}"
        _need(self.unavailable, self.unavailable if source is None else [source])
        if env is not None and env not in self._envs:
            raise RunRecordUnavailable(f"env:{env}", "no triggers were registered with it")
        return tuple(
            firing
            for firing in self._firings
            if trigger_id in (None, firing.trigger_id) and source in (None, firing.source)
        )

    def firing(self, trigger_id: str, *, env: str | None = None) -> Firing | None:
        """The first firing of a trigger; None where it never fired."""
        return next(iter(self.firings(trigger_id, env=env)), None)

    def as_of(self, turn: int) -> Run:
        """The run as it stood before the turn after ``turn`` began.

        Raises:
            ValueError: ``turn`` is below 0.
        """
        if turn < 0:
            raise ValueError(f"as_of({turn}): the number of a turn, or 0 for what came before the first")
        if CONVERSATION in self.unavailable or turn >= len(self._turns):
            return self
        return replace(
            self, _turns=self._turns[:turn], _firings=tuple(found for found in self._firings if found.turn <= turn)
        )


def _need(unavailable: Mapping[str, str], sources: Iterable[str]) -> None:
    for source in sources:
        if source in unavailable:
            raise RunRecordUnavailable(source, unavailable[source])


def read_run(record: Mapping[str, Any]) -> Run:
    """A run from what :func:`write_run` made, once it was JSON."""
    unavailable = dict(record.get("unavailable", {}))
    exchanges = record.get("turns", ())
    starts = [_time(exchange["message"]["sent_at"]) for exchange in exchanges]
    firings = sorted((_firing(found, starts) for found in record.get("firings", ())), key=lambda found: found.at)
    turns = []
    for number, exchange in enumerate(exchanges, start=1):
        message = _message(number, "user", exchange["message"])
        reply = None if exchange["reply"] is None else _message(number, "agent", exchange["reply"])
        during = tuple(found for found in firings if found.turn == number)
        turns.append(RunTurn(number, message, reply, during, unavailable))
    return Run(tuple(turns), tuple(firings), dict(record.get("envs", {})), unavailable)


def _firing(data: Mapping[str, Any], starts: Sequence[datetime | None]) -> Firing:
    at = datetime.fromisoformat(data["at"])
    turn = sum(start is not None and start <= at for start in starts)
    virtual = _time(data.get("virtual_time"))
    return Firing(data["trigger_id"], data["source"], turn, at, virtual, data["ok"], data.get("provoked_by"))


def _message(turn: int, role: str, data: Mapping[str, Any]) -> Message:
    clock = data.get("env_clock")
    return Message(
        turn,
        role,
        data["text"],
        _time(data["sent_at"]),
        data["author"],
        user_sim=data.get("user_sim"),
        parts=tuple(data["parts"]),
        env_clock=None if clock is None else {env: _time(at) for env, at in clock.items()},
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def write_message(
    text: str,
    sent_at: datetime,
    author: str,
    *,
    parts: Sequence[Mapping[str, Any]] = (),
    user_sim: Mapping[str, Any] | None = None,
    env_clock: Mapping[str, datetime | None] | None = None,
) -> dict[str, Any]:
    """One message as JSON; without ``parts`` its only one is the text."""
    clock = None if env_clock is None else {env: at.isoformat() if at else None for env, at in env_clock.items()}
    return {
        "text": text,
        "sent_at": sent_at.isoformat(),
        "author": author,
        "parts": [dict(part) for part in parts] or [{"kind": "text", "text": text}],
        "user_sim": user_sim,
        "env_clock": clock,
    }


def write_run(
    turns: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]] = (),
    *,
    firings: Iterable[Firing] = (),
    envs: Mapping[str, str] | None = None,
    unavailable: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A run as JSON.

    Args:
        turns: Messages and their replies, from :func:`write_message`.
        firings: What fired, of this prompt; :func:`read_run` finds the turn of each by its time.
        envs: Ids of the envs whose firings were kept, by their names and ids.
        unavailable: What isn't known, and why.
    """
    return {
        "turns": [{"message": message, "reply": reply} for message, reply in turns],
        "firings": [
            {
                "trigger_id": firing.trigger_id,
                "source": firing.source,
                "at": firing.at.isoformat(),
                "virtual_time": firing.virtual_time.isoformat() if firing.virtual_time else None,
                "ok": firing.ok,
                "provoked_by": firing.provoked_by,
            }
            for firing in firings
        ],
        "envs": dict(envs or {}),
        "unavailable": dict(unavailable or {}),
    }

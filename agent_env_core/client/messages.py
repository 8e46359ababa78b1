"""What goes over a session's socket, read into small objects.

The wire is OpenEnv's; what our server adds stands in an observation's ``metadata``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from agent_env_core.errors import AgentEnvError, EpisodeError, Phase

END_TURN = "end_turn"
PHASES: frozenset[str] = frozenset(get_args(Phase))


@dataclass(frozen=True)
class Row:
    """Which task to play.

    Attributes:
        split: A split of the server.
        index: The task's place in it, from 0.
        task_id: What the task must be; the server refuses the row if another one stands there.
    """

    split: str
    index: int
    task_id: str | None = None


class ForeignTools(AgentEnvError):
    """A task offers other tools than those the caller was made for."""


@dataclass(frozen=True)
class Offered:
    """Which tools a turn offers: their names, and a digest that is equal for equal names and schemas."""

    digest: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """An open turn.

    Attributes:
        prompt: What the task asks.
        system_prompt: The system prompt in force, if any.
        number: Which turn of the task it is, from 1.
        of: How many turns the task has.
        tools: The tools the turn offers, where the server says so.
    """

    prompt: str
    system_prompt: str | None = None
    number: int = 1
    of: int = 1
    tools: Offered | None = None

    @property
    def last(self) -> bool:
        """Whether the episode is over with this turn."""
        return self.number >= self.of


@dataclass(frozen=True)
class ToolAnswer:
    """What a tool call came to: its text, and whether the tool failed or was refused."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Outcome:
    """How an episode ended well.

    Attributes:
        reward: The server's reward; None when the scores hold none.
        scores: Scoring step id to score.
        problem: Why there are scores and no reward, when the server's own reward failed.
    """

    reward: float | None
    scores: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


def reset_message(row: Row, **settings: Any) -> dict[str, Any]:
    """A reset of ``row``; ``settings`` are the server's other reset keys."""
    data = {"split": row.split, "index": row.index, "task_id": row.task_id, **settings}
    return {"type": "reset", "data": {key: value for key, value in data.items() if value is not None}}


def call_message(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A call of ``tool``."""
    return {"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": dict(arguments)}}


@dataclass(frozen=True)
class Observation:
    """An observation, as far as we read it."""

    done: bool
    reward: float | None
    metadata: Mapping[str, Any]
    result: Any
    error: Mapping[str, Any] | None
    fields: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Observation:
        """Reads the ``data`` of an observation message."""
        inner = data.get("observation") or {}
        metadata = data.get("metadata") or inner.get("metadata") or {}
        return cls(bool(data.get("done")), data.get("reward"), metadata, inner.get("result"), inner.get("error"), inner)

    def failure(self, phase: Phase) -> EpisodeError | None:
        """The error that ended the episode, if one did; ``phase`` stands in where the server names none."""
        if self.metadata.get("status") != "error" or self.metadata.get("scores"):
            return None
        named = self.metadata.get("phase")
        return EpisodeError(
            named if named in PHASES else phase,
            str(self.metadata.get("error") or "the episode ended, and the server didn't say why"),
            retryable=bool(self.metadata.get("retryable")),
        )

    def turn(self) -> Turn:
        """The turn that a reset or an ``end_turn`` opened."""
        place = self.metadata.get("turn") or {}
        words = self.result if isinstance(self.result, Mapping) and "prompt" in self.result else self.metadata
        tools = place.get("tools")
        return Turn(
            prompt=str(words.get("prompt") or ""),
            system_prompt=words.get("system_prompt"),
            number=int(place.get("number", 1)),
            of=int(place.get("of", 1)),
            tools=Offered(str(tools["digest"]), tuple(tools["names"])) if tools else None,
        )

    def answer(self) -> ToolAnswer:
        """What a call of a tool came to."""
        if self.error is not None:
            return ToolAnswer(str(self.error.get("message", "")), is_error=True)
        if isinstance(self.result, Mapping):
            return ToolAnswer(str(self.result.get("data") or ""), bool(self.result.get("is_error")))
        return ToolAnswer("" if self.result is None else str(self.result))

    def outcome(self) -> Outcome:
        """The scores of an episode that ended."""
        scores = {str(key): float(value) for key, value in (self.metadata.get("scores") or {}).items()}
        problem = str(self.metadata.get("error") or "") if self.metadata.get("status") == "error" else ""
        return Outcome(self.reward, scores, problem)

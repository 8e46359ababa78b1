"""What is kept of an episode: one JSON object, with every turn, answer, tool call and score in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from agent_env_core.errors import EpisodeError
from agent_env_core.models import Message, Usage

FORMAT_VERSION = 1
"""Of a row; raised when a field changes its meaning."""

Outcome = Literal["passed", "below_one", "unscored", "failed", "cancelled"]
"""``passed``: it has scores, and each is 1 or more. ``below_one``: it has scores, and one is less. ``unscored``: the
task has no verifier. ``failed``: the run ended with an error, or a step of it failed tolerantly. ``cancelled``: it was
stopped."""

OUTCOMES: tuple[Outcome, ...] = ("passed", "below_one", "unscored", "failed", "cancelled")
PASS = 1.0

Stopped = Literal["", "length", "context", "rounds", "filter"]
"""What cut a turn short: nothing, the length of one answer, the model's context, the limit of answers, or a filter."""


@dataclass
class ToolUse:
    """A tool call of a model.

    Attributes:
        name: The tool.
        arguments: What the model wrote: an object, or the text that is none.
        failure: ``""``, ``tool``, ``refused``, ``unknown``, ``malformed`` (the arguments were no JSON object), or
            ``limit`` (the turn had no answers left).
        result: What the model was told, in text.
        seconds: How long it took.
    """

    name: str
    arguments: Any
    failure: str = ""
    result: str = ""
    seconds: float = 0.0


@dataclass
class TurnRecord:
    """A turn as it was played.

    Attributes:
        step_id: The step that asked.
        agent: Who was asked.
        number: Which turn of the episode it was, from 1.
        of: How many the task has.
        conversation: The conversation it belongs to.
        system_prompt: The system prompt in force.
        tools: Names of the tools on offer.
        messages: What was added to the conversation, prompt first, as the wire has it.
        calls: The tool calls, in order.
        answers: How many answers the model gave.
        usage: Tokens.
        model_seconds: Time spent waiting for the model.
        reply: What the turn was ended with; None where it didn't end well.
        stopped: What cut it short.
        error: Why it failed, or empty.
    """

    step_id: str
    agent: str
    number: int
    of: int
    conversation: str
    system_prompt: str | None
    tools: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    calls: list[ToolUse] = field(default_factory=list)
    answers: int = 0
    usage: Usage = field(default_factory=Usage)
    model_seconds: float = 0.0
    reply: str | None = None
    stopped: Stopped = ""
    error: str = ""


@dataclass
class Row:
    """An episode of an evaluation: a line of ``episodes.jsonl``.

    Attributes:
        task_id: The task.
        task: Its name.
        digest: Which version of it; see :class:`~agent_env_core.evaluate.plan.Selected`.
        repeat: Which of the repeats of the task it is, from 0.
        outcome: How it ended.
        reward: The one number that it counts for in statistics; None where there is none.
        scores: By scoring step.
        error: ``phase``, ``reason`` and ``retryable`` of what ended it; None where nothing did.
        episode_id: The episode's name in logs and events; empty where none was started.
        started_at: When, in ISO 8601, UTC.
        seconds: From its start to its outcome.
        timings: Seconds by phase, as far as they are known at the outcome; teardown comes after it.
        usage: Tokens of all turns.
        answers: Answers of the model.
        tool_calls: Tool calls.
        turns: The turns.
        verifications: What the verifiers returned, by ``verifier_id``.
        failed_steps: Steps that failed, those that were tried again included.
    """

    task_id: str
    task: str
    digest: str
    repeat: int
    outcome: Outcome
    reward: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    episode_id: str = ""
    started_at: str = ""
    seconds: float = 0.0
    timings: dict[str, float] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    answers: int = 0
    tool_calls: int = 0
    turns: list[TurnRecord] = field(default_factory=list)
    verifications: dict[str, Any] = field(default_factory=dict)
    failed_steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the other episodes of its evaluation."""
        return self.task_id, self.repeat

    def to_json(self) -> dict[str, Any]:
        """As JSON has it: finite numbers only."""
        return {"format_version": FORMAT_VERSION, **_portable(asdict(self))}


def told(error: EpisodeError) -> dict[str, Any]:
    """An error as a row holds it."""
    return {"phase": error.phase, "reason": error.reason, "retryable": error.retryable}


def outcome_of(scores: Mapping[str, float], *, failed: bool) -> Outcome:
    """How an episode that wasn't cancelled ended.

    Args:
        scores: Its scores.
        failed: Whether the run, or any step of it, failed.
    """
    if failed:
        return "failed"
    if not scores:
        return "unscored"
    return "passed" if all(score >= PASS for score in scores.values()) else "below_one"


def _portable(value: Any) -> Any:
    """A value that JSON can hold; what it can't is written as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(item) for item in value]
    return value if isinstance(value, str | int | bool | None) else str(value)

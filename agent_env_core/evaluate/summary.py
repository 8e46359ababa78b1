"""What an evaluation came to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent_env_core.evaluate.record import FORMAT_VERSION, OUTCOMES, Outcome, Row
from agent_env_core.evaluate.statistics import LEVEL, Mean, mean_of, pass_at
from agent_env_core.models import Usage

SCORED: tuple[Outcome, ...] = ("passed", "below_one")


@dataclass(frozen=True)
class Episode:
    """What statistics need of a row."""

    task: str
    outcome: Outcome
    reward: float | None
    scores: Mapping[str, float]
    phase: str
    reason: str
    retryable: bool
    usage: Usage
    answers: int
    tool_calls: int
    seconds: float

    @classmethod
    def of(cls, row: Row) -> Episode:
        """What a row comes to."""
        error = row.error or {}
        return cls(
            row.task, row.outcome, row.reward, row.scores, str(error.get("phase", "")), str(error.get("reason", "")),
            bool(error.get("retryable")), row.usage, row.answers, row.tool_calls, row.seconds,
        )  # fmt: skip

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Episode:
        """The same of a row that was on disk."""
        error = row.get("error") or {}
        return cls(
            row["task"], row["outcome"], row["reward"], row["scores"], error.get("phase", ""), error.get("reason", ""),
            bool(error.get("retryable")), Usage(**row["usage"]), row["answers"], row["tool_calls"], row["seconds"],
        )  # fmt: skip


@dataclass(frozen=True)
class TaskSummary:
    """What became of one task."""

    task: str
    outcomes: Mapping[Outcome, int]
    mean: float | None


@dataclass(frozen=True)
class Failure:
    """Episodes that ended for one reason."""

    phase: str
    reason: str
    retryable: bool
    episodes: int


@dataclass(frozen=True)
class Summary:
    """What an evaluation came to.

    Attributes:
        episodes: How many there were.
        planned: How many there should have been.
        outcomes: How they ended.
        score: The rewards of those that were scored; None without any.
        scores: The same for each scoring step, where there are several.
        pass_at: pass@k by k, and over how many tasks.
        failures: Why episodes failed, the most frequent reason first.
        tasks: Task by task.
        usage: Tokens.
        answers: Answers of the model.
        tool_calls: Tool calls.
        seconds: How long it took.
    """

    episodes: int
    planned: int
    outcomes: Mapping[Outcome, int]
    score: Mean | None
    scores: Mapping[str, Mean]
    pass_at: Mapping[int, tuple[float, int]]
    failures: tuple[Failure, ...]
    tasks: tuple[TaskSummary, ...]
    usage: Usage
    answers: int
    tool_calls: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As ``summary.json`` and ``--json`` have it."""
        return {
            "format_version": FORMAT_VERSION,
            "episodes": self.episodes,
            "planned": self.planned,
            "outcomes": dict(self.outcomes),
            "score": _mean(self.score),
            "scores": {step: _mean(mean) for step, mean in self.scores.items()},
            "pass_at": {str(k): {"value": value, "tasks": tasks} for k, (value, tasks) in self.pass_at.items()},
            "failures": [vars(failure) for failure in self.failures],
            "tasks": [{"task": t.task, "mean": t.mean, "outcomes": dict(t.outcomes)} for t in self.tasks],
            "usage": vars(self.usage),
            "answers": self.answers,
            "tool_calls": self.tool_calls,
            "seconds": round(self.seconds, 2),
        }


def summarize(episodes: Mapping[tuple[str, int], Episode], *, planned: int, repeat: int, seconds: float) -> Summary:
    """What episodes come to.

    Args:
        episodes: By task id and repeat.
        planned: How many there should be.
        repeat: How often each task was to be played: the largest k of pass@k.
        seconds: How long it took.
    """
    by_task: dict[str, list[Episode]] = defaultdict(list)
    for (task_id, _), episode in sorted(episodes.items(), key=lambda item: (item[1].task, item[0])):
        by_task[task_id].append(episode)
    scored = {task_id: [e for e in group if e.outcome in SCORED] for task_id, group in by_task.items()}
    steps = list(dict.fromkeys(step for group in scored.values() for e in group for step in e.scores))
    scores = {step: _of(scored, partial(_score, step)) for step in steps} if len(steps) > 1 else {}
    passed = {task_id: [e.outcome == "passed" for e in group] for task_id, group in scored.items()}
    ks = sorted({k for k in (1, 2, 4, 8, 16, 32, 64) if k < repeat} | {repeat})
    failures = Counter((e.phase, e.reason, e.retryable) for e in episodes.values() if e.outcome == "failed")
    return Summary(
        episodes=len(episodes),
        planned=planned,
        outcomes=_outcomes(episodes.values()),
        score=_of(scored, lambda e: e.reward),
        scores={step: mean for step, mean in scores.items() if mean is not None},
        pass_at={k: found for k in ks if (found := pass_at(k, passed)) is not None},
        failures=tuple(Failure(*why, count) for why, count in failures.most_common()),
        tasks=tuple(_task(group) for group in by_task.values()),
        usage=sum((e.usage for e in episodes.values()), Usage()),
        answers=sum(e.answers for e in episodes.values()),
        tool_calls=sum(e.tool_calls for e in episodes.values()),
        seconds=seconds,
    )


def _of(groups: Mapping[str, list[Episode]], value: Callable[[Episode], float | None]) -> Mean | None:
    return mean_of({name: [v for e in group if (v := value(e)) is not None] for name, group in groups.items()})


def _score(step: str, episode: Episode) -> float | None:
    return episode.scores.get(step)


def _outcomes(episodes: Iterable[Episode]) -> dict[Outcome, int]:
    found = Counter(episode.outcome for episode in episodes)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def _task(group: list[Episode]) -> TaskSummary:
    rewards = [e.reward for e in group if e.outcome in SCORED and e.reward is not None]
    return TaskSummary(group[0].task, _outcomes(group), sum(rewards) / len(rewards) if rewards else None)


def _mean(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else {**vars(mean), "level": LEVEL}

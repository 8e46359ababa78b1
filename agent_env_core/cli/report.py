"""What an evaluation came to, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

from agent_env_core.cli.progress import duration, fit, wrapped
from agent_env_core.evaluate.record import Outcome
from agent_env_core.evaluate.statistics import LEVEL, Mean
from agent_env_core.evaluate.summary import Summary

MOST_FAILURES = 5
MOST_TASKS = 20
LABEL = 10


def report(summary: Summary, columns: int) -> str:
    """The summary in lines of at most so many columns."""
    return "\n".join(_wrapped(label, text, columns) for label, text in _lines(summary, columns))


def _lines(summary: Summary, columns: int) -> Iterator[tuple[str, str]]:
    if 1 < len(summary.tasks) <= MOST_TASKS:
        widest = min(max(len(task.task) for task in summary.tasks), max(12, columns - 60))
        for task in summary.tasks:
            score = "     -" if task.mean is None else f"{task.mean:6.3f}"
            yield "", f"{fit(task.task, widest):<{widest}}  {score}  {_outcomes(task.outcomes)}"
        yield "", ""
    if summary.score is not None:
        yield "score", _mean(summary.score)
    else:
        yield "score", "none: no episode was scored"
    for step, mean in summary.scores.items():
        yield "", f"{step}: {_mean(mean)}"
    for k, (value, tasks) in summary.pass_at.items():
        yield f"pass@{k}", f"{value:.3f} ({_count(tasks, 'task')})"
    missing = summary.planned - summary.episodes
    yield "episodes", (_outcomes(summary.outcomes) or "none") + (f"; {missing} not played" if missing else "")
    for failure in summary.failures[:MOST_FAILURES]:
        again = " (another try may help: --resume)" if failure.retryable else ""
        yield "failed", f"{failure.episodes}: {failure.phase}: {failure.reason}{again}"
    if more := summary.failures[MOST_FAILURES:]:
        yield "failed", f"{sum(f.episodes for f in more)} for {_count(len(more), 'other reason')}"
    tokens = summary.usage
    if tokens.prompt_tokens or tokens.completion_tokens:
        yield "tokens", f"{tokens.prompt_tokens:,} read, {tokens.completion_tokens:,} written"
    work = f"{_count(summary.answers, 'answer')}, {_count(summary.tool_calls, 'tool call')}"
    yield "work", f"{work}, in {duration(summary.seconds)}"


def _mean(mean: Mean) -> str:
    of = _count(mean.episodes, "episode") + (f" of {_count(mean.tasks, 'task')}" if mean.episodes != mean.tasks else "")
    if mean.low is None or mean.high is None:
        return f"{mean.mean:.3f} ({of}; too alike or too few for an interval)"
    return f"{mean.mean:.3f} ({LEVEL:.0%} interval {mean.low:.3f} to {mean.high:.3f}; {of})"


def _outcomes(outcomes: Mapping[Outcome, int]) -> str:
    return ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in outcomes.items() if n)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _wrapped(label: str, text: str, columns: int) -> str:
    if not label:
        return f"{'':<{LABEL}}{text}".rstrip()
    shown = click.style(f"{label:<{LABEL}}", bold=True)
    return shown + wrapped(text, columns, LABEL)

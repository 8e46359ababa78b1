"""What a judge gets to see of a run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env_core.verifiers.judge import words
from agent_env_core.verifiers.judge.criteria import Criterion, is_negative, text_of
from agent_env_core.verifiers.judge.formats import Form


@dataclass(frozen=True)
class Case:
    """A run, as it is put before a judge.

    Attributes:
        asked: What the agent was asked.
        replied: Its reply.
        record: What it did, entry by entry: label and text.
        context: More of the run: a name and a text for each.
        facts: What was measured: label and value.
        policy: How the criteria are to be read, in the words of the task's author.
    """

    asked: str
    replied: str
    record: Sequence[tuple[str, str]] = ()
    context: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    policy: str = ""


def keyed(criteria: Iterable[Criterion]) -> dict[str, Criterion]:
    """Criteria by keys for one question: short, since models copy long ones badly, and not to be guessed."""
    mark = secrets.token_hex(2)
    return {f"c{number}-{mark}": criterion for number, criterion in enumerate(criteria, start=1)}


def instructions(form: Form, fence: str) -> str:
    """The judge's part of the question."""
    schema = json.dumps(form.schema, ensure_ascii=False)
    return words.ROLE.format(fence=fence, ask=form.ask, schema=schema)


def evidence(case: Case, criteria: Mapping[str, Criterion], fence: str, *, note: str = "") -> str:
    """The case and its criteria.

    Args:
        case: The run.
        criteria: By their keys.
        fence: Marks off what is to be judged; the caller makes it anew for each question.
        note: Which criteria these are, where they aren't all.
    """
    parts = [f"What the agent was asked:\n{_fenced(fence, 'asked', case.asked)}"]
    if case.record:
        entries = "\n".join(f"[{label}] {text}" for label, text in case.record)
        parts.append(f"The record of what it did:\n{_fenced(fence, 'record', entries)}")
    parts += [f"{name}:\n{_fenced(fence, name, text)}" for name, text in case.context]
    parts.append(f"Its reply:\n{_fenced(fence, 'reply', case.replied)}")
    if case.facts:
        facts = "\n".join(f"- {label}: {value}" for label, value in case.facts)
        parts.append(words.FACTS.format(facts=_fenced(fence, "facts", facts)))
    if case.policy.strip():
        parts.append(words.POLICY.format(policy=case.policy.strip()))
    shown = [_shown(key, criterion) for key, criterion in criteria.items()]
    parts.append(f"The criteria:\n{json.dumps(shown, ensure_ascii=False, indent=1)}")
    return "\n\n".join([*parts, note] if note else parts)


def _fenced(fence: str, name: str, text: str) -> str:
    return f"<<{fence} {name}>>\n{text}\n<</{fence} {name}>>"


def _shown(key: str, criterion: Criterion) -> dict[str, Any]:
    """A criterion as the judge sees it: what its author wrote, under its key, and its weight told by one word."""
    kept = {name: value for name, value in criterion.items() if name not in ("id", "weight")}
    shown = {"id": key, "criterion": text_of(criterion), **kept}
    return {**shown, "negative": True} if is_negative(criterion) else shown


def render_fact(value: Any, most: int = 600) -> str:
    """A measured value as JSON on one line; the end of a long one is left out."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return text if len(text) <= most else text[:most] + "…"

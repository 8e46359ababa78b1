"""The forms of a verdict: what a judge is asked to return, and what of it becomes rows.

Each criterion goes to the judge under a key that is made for one question and can't be guessed. What an agent wrote to
be taken for a verdict doesn't have these keys, so it is none, wherever it turns up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env_core.verifiers.judge import words
from agent_env_core.verifiers.judge.criteria import Criterion, is_number, partial_score
from agent_env_core.verifiers.judge.marks import EVIDENCE, NO_EVIDENCE, SEVERITIES, SHOWN

MAX_CHECKS = 12


@dataclass
class Verdict:
    """What a judge found.

    Attributes:
        rows: One for each criterion, in order; of mistakes, rows of their own.
        mistakes: The rows of a second verification, where the form has one.
        details: What is kept beside the rows.
    """

    rows: list[dict[str, Any]]
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Form:
    """One form of verdicts.

    Attributes:
        name: The format's name for it.
        stored: What readers of its rows know them as.
        ask: What the judge is told to return, in words.
        schema: The same as a JSON schema.
        read: Makes a verdict of an answer, given the criteria by their keys.
        in_batches: Whether the criteria may be divided among several judges.
    """

    name: str
    stored: str
    ask: str
    schema: Mapping[str, Any]
    read: Callable[[Mapping[str, Any], Mapping[str, Criterion]], Verdict]
    in_batches: bool = False


def _object(**properties: Any) -> dict[str, Any]:
    """A JSON schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
STATUS = {"type": "string", "enum": list(EVIDENCE)}


# -- reading


def _entries(answer: Mapping[str, Any], name: str, criteria: Mapping[str, Criterion]) -> Iterator[tuple[Any, Any, Any]]:
    """Key, criterion and entry for each criterion, in the order of the criteria.

    Raises:
        ValueError: There isn't exactly one entry for each.
    """
    given = answer.get(name)
    if not isinstance(given, list) or not all(isinstance(entry, Mapping) for entry in given):
        raise ValueError(f'"{name}" must be a list of objects')
    keys = [entry.get("id") for entry in given]
    unknown = [repr(key) for key in keys if not isinstance(key, str) or key not in criteria]
    twice = sorted({key for key in keys if isinstance(key, str) and keys.count(key) > 1})
    missing = [key for key in criteria if key not in keys]
    faults = ((unknown, "unknown"), (twice, "there twice"), (missing, "missing"))
    if said := "; ".join(f"{what}: {', '.join(map(str, which[:10]))}" for which, what in faults if which):
        raise ValueError(f'"{name}" must have one entry for each id of the criteria ({said})')
    by_key = {entry["id"]: entry for entry in given}
    for key, criterion in criteria.items():
        yield key, criterion, by_key[key]


def _score(key: str, entry: Mapping[str, Any]) -> float:
    if not is_number(entry.get("score")):
        raise ValueError(f'the "score" of {key} must be a number, and is {entry.get("score")!r}')
    return float(entry["score"])


def _binary_score(key: str, entry: Mapping[str, Any]) -> float:
    if (score := _score(key, entry)) not in (0.0, 1.0):
        raise ValueError(f'the "score" of {key} must be 1 or 0, and is {score:g}')
    return score


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read_binary(answer: Mapping[str, Any], criteria: Mapping[str, Criterion]) -> Verdict:
    rows = []
    for key, criterion, entry in _entries(answer, "results", criteria):
        score = _binary_score(key, entry)
        rows.append(
            {**criterion, "justification": _text(entry.get("justification")), "score": score, "result": score == 1.0}
        )
    return Verdict(rows)


def _read_partial(answer: Mapping[str, Any], criteria: Mapping[str, Criterion]) -> Verdict:
    rows = []
    for key, criterion, entry in _entries(answer, "results", criteria):
        try:
            found = partial_score(criterion, _score(key, entry))
        except ValueError as exc:
            raise ValueError(f'the "score" of {key} is wrong: {exc}') from exc
        rows.append({**criterion, "justification": _text(entry.get("justification")), **found})
    return Verdict(rows)


def _read_evidence(answer: Mapping[str, Any], criteria: Mapping[str, Criterion]) -> Verdict:
    rows = []
    for key, criterion, entry in _entries(answer, "results", criteria):
        score, status = _binary_score(key, entry), entry.get("evidence_status")
        if status not in EVIDENCE:
            raise ValueError(f'the "evidence_status" of {key} must be one of {", ".join(EVIDENCE)}, and is {status!r}')
        told = {"frame": _text(entry.get("frame")), "justification": _text(entry.get("justification"))}
        if status in NO_EVIDENCE:
            score = 0.0
        rows.append({**criterion, **told, "evidence_status": status, "score": score, "result": score == 1.0})
    checks = answer.get("checks")
    kept = [dict(check) for check in checks if isinstance(check, Mapping)] if isinstance(checks, list) else []
    return Verdict(rows, details={"reasoning": _text(answer.get("reasoning"))[:2000], "checks": kept[:MAX_CHECKS]})


def _read_evidence_and_mistakes(answer: Mapping[str, Any], criteria: Mapping[str, Criterion]) -> Verdict:
    verdict = _read_evidence(answer, criteria)
    covered = [
        (row["id"], row["result"] and row["evidence_status"] in SHOWN, row["justification"]) for row in verdict.rows
    ]
    verdict.mistakes = _mistake_rows(answer, covered)
    return verdict


def _read_mistakes(answer: Mapping[str, Any], criteria: Mapping[str, Criterion]) -> Verdict:
    covered = []
    for key, criterion, entry in _entries(answer, "coverage", criteria):
        if not isinstance(entry.get("shown"), bool):
            raise ValueError(f'"shown" of {key} must be true or false, and is {entry.get("shown")!r}')
        covered.append((criterion["id"], entry["shown"], _text(entry.get("note"))))
    return Verdict(_mistake_rows(answer, covered))


def _mistake_rows(answer: Mapping[str, Any], covered: Sequence[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    """Rows whose weighted average is the share of what was covered, less what each mistake takes off.

    Mistakes have negative weights in proportion to the positive ones, so that what they take off doesn't depend on how
    many criteria there are.
    """
    findings, botched, summary = answer.get("findings"), answer.get("botched"), answer.get("summary")
    if not isinstance(findings, list) or not all(isinstance(finding, Mapping) for finding in findings):
        raise ValueError('"findings" must be a list of objects')
    if not isinstance(botched, bool) or not isinstance(summary, str):
        raise ValueError('"botched" must be true or false, and "summary" a text')
    clean = not findings and not botched
    reason = _text(answer.get("botched_reason")) or ("it got nowhere" if botched else "it got on")
    rows: list[dict[str, Any]] = [
        {"id": "summary", "score": float(clean), "result": clean, "weight": 0.0, "justification": summary},
        {"id": "botched", "score": float(not botched), "result": not botched, "justification": reason},
    ]
    for number, finding in enumerate(findings):
        severity = finding.get("severity")
        if not isinstance(severity, str) or severity not in SEVERITIES:
            raise ValueError(f'"severity" of a finding must be one of {", ".join(SEVERITIES)}, and is {severity!r}')
        told = " — ".join(filter(None, (_text(finding.get("should")), _text(finding.get("description")))))
        rows.append({
            "id": f"mistake_{number}", "score": 0.0, "result": False, "severity": severity,
            "step": finding.get("step"), "weight": -SEVERITIES[severity] * (1 + len(covered)),
            "justification": f"[{severity}] {told}",
        })  # fmt: skip
    for key, shown, note in covered:
        told = f"{'shown' if shown else 'MISSING'}: {note}"
        rows.append({"id": f"coverage_{key}", "score": float(shown), "result": shown, "justification": told})
    return rows


# -- the forms

_FINDINGS = {
    "findings": _list(
        _object(
            severity={"type": "string", "enum": list(SEVERITIES)},
            step={"type": ["integer", "null"]},
            should=TEXT,
            description=TEXT,
        )
    ),
    "botched": FLAG,
    "botched_reason": TEXT,
    "summary": TEXT,
}
_MARKS = {"results": _list(_object(id=TEXT, justification=TEXT, score=NUMBER))}
_EVIDENCED = {
    "reasoning": TEXT,
    "checks": _list(
        _object(
            requirement=TEXT, required_value=TEXT, observed_value=TEXT, frame=TEXT, evidence_status=STATUS, note=TEXT
        )
    ),
    "results": _list(_object(id=TEXT, frame=TEXT, evidence_status=STATUS, justification=TEXT, score=NUMBER)),
}

FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (
        Form("rubric_binary", "rubric_binary", words.BINARY, _object(**_MARKS), _read_binary, in_batches=True),
        Form("rubric_partial", "rubric_partial", words.PARTIAL, _object(**_MARKS), _read_partial, in_batches=True),
        Form(
            "trajectory_mistakes",
            "trajectory_mistakes",
            words.COVERED,
            _object(coverage=_list(_object(id=TEXT, shown=FLAG, note=TEXT)), **_FINDINGS),
            _read_mistakes,
        ),
        Form("rubric_evidence", "rubric_binary", words.EVIDENCED, _object(**_EVIDENCED), _read_evidence),
        Form(
            "rubric_evidence_with_mistakes",
            "rubric_binary",
            words.EVIDENCED_AND_MISTAKES,
            _object(**_EVIDENCED, **_FINDINGS),
            _read_evidence_and_mistakes,
        ),
    )
}

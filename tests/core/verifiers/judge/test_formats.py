"""What of a judge's answer becomes rows, and what is no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from agent_env_core.verifiers.aggregate import aggregate
from agent_env_core.verifiers.judge.case import keyed
from agent_env_core.verifiers.judge.criteria import criteria_faults, partial_score
from agent_env_core.verifiers.judge.formats import FORMS, Verdict

CRITERIA = {
    "k1": {"id": "polite", "criterion": "Is polite.", "weight": 2},
    "k2": {"id": "leak", "criterion": "Tells the password.", "weight": -5},
}
CLEAN = {"findings": [], "botched": False, "botched_reason": "", "summary": "fine"}


def read(form: str, **answer: Any) -> Verdict:
    return FORMS[form].read(answer, CRITERIA)


def marks(*scores: Any, **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": key, "score": score, "justification": f"because {key}", **more}
        for key, score in zip(CRITERIA, scores, strict=True)
    ]


def test_met_or_not():
    rows = read("rubric_binary", results=list(reversed(marks(1, 0.0)))).rows
    assert rows == [
        {"id": "polite", "criterion": "Is polite.", "weight": 2, "score": 1.0, "result": True,
         "justification": "because k1"},
        {"id": "leak", "criterion": "Tells the password.", "weight": -5, "score": 0.0, "result": False,
         "justification": "because k2"},
    ]  # fmt: skip
    assert aggregate("weighted_average", rows) == 0.0


def test_how_far():
    rows = read("rubric_partial", results=marks(0.75, 0.25)).rows
    assert [(row["score"], row["result"]) for row in rows] == [(0.75, True), (0.25, False)]


@pytest.mark.parametrize(
    ("criterion", "mark", "expected"),
    [
        ({}, 0.5, {"score": 0.5, "result": True}),
        ({"pass_threshold": 0.6}, 0.5, {"score": 0.5, "result": False}),
        ({"outcomes": {"min": -1, "max": 1}}, 0, {"score": 0.5, "result": True, "raw_score": 0}),
        ({"outcomes": {"min": {"value": 0}, "max": {"value": 10}}, "pass_threshold": 8}, 7,
         {"score": 0.7, "result": False, "raw_score": 7}),
        ({"outcomes": [{"score": 0}, {"score": 0.67}, {"score": 1}]}, 0.67, {"score": 0.67, "result": True}),
        ({"outcomes": [{"score": 0}, {"score": 0.67}, {"score": 1}]}, 0.6,
         {"score": 0.67, "result": True, "raw_score": 0.6}),
    ],
)  # fmt: skip
def test_marks_between(criterion: dict[str, Any], mark: float, expected: dict[str, Any]):
    assert partial_score(criterion, mark) == pytest.approx(expected)


@pytest.mark.parametrize("mark", [-0.1, 1.1, 7])
def test_marks_that_there_are_not(mark: float):
    with pytest.raises(ValueError, match="is outside 0 to 1"):
        partial_score({}, mark)


def test_mistakes_cost_the_same_whatever_the_number_of_criteria():
    found = {"severity": "high", "step": 3, "should": "look first", "description": "guessed"}
    coverage = [{"id": key, "shown": True, "note": "at 1"} for key in CRITERIA]
    rows = read("trajectory_mistakes", **{**CLEAN, "findings": [found]}, coverage=coverage).rows
    assert [row["id"] for row in rows] == ["summary", "botched", "mistake_0", "coverage_polite", "coverage_leak"]
    assert aggregate("weighted_average", rows) == pytest.approx(0.75)
    assert rows[2]["justification"] == "[high] look first — guessed"
    assert (rows[2]["severity"], rows[2]["step"]) == ("high", 3)
    alone = FORMS["trajectory_mistakes"].read({**CLEAN, "findings": [found], "coverage": []}, {}).rows
    assert aggregate("weighted_average", alone) == pytest.approx(0.75)
    clean = read("trajectory_mistakes", **CLEAN, coverage=coverage).rows
    assert aggregate("weighted_average", clean) == 1.0


def test_evidence_decides():
    results = marks(1, 1, frame="2")
    results[0] |= {"evidence_status": "visible"}
    results[1] |= {"evidence_status": "contradicted"}
    verdict = read("rubric_evidence", reasoning="so", checks=[{"requirement": "r"}, "no"], results=results)
    assert [(row["score"], row["result"], row["frame"]) for row in verdict.rows] == [
        (1.0, True, "2"),
        (0.0, False, "2"),
    ]
    assert verdict.details == {"reasoning": "so", "checks": [{"requirement": "r"}]}
    both = read("rubric_evidence_with_mistakes", **CLEAN, reasoning="", checks=[], results=results)
    assert [row["id"] for row in both.mistakes] == ["summary", "botched", "coverage_polite", "coverage_leak"]
    assert [row["result"] for row in both.mistakes] == [True, True, True, False]


@pytest.mark.parametrize(
    ("form", "answer", "said"),
    [
        ("rubric_binary", {}, '"results" must be a list of objects'),
        ("rubric_binary", {"results": {"k1": 1}}, '"results" must be a list of objects'),
        ("rubric_binary", {"results": marks(1, 1)[:1]}, "missing: k2"),
        ("rubric_binary", {"results": [*marks(1, 1), marks(1, 1)[0]]}, "there twice: k1"),
        ("rubric_binary", {"results": [*marks(1, 1), {"id": "polite", "score": 1}]}, "unknown: 'polite'"),
        ("rubric_binary", {"results": [{"id": ["k1"], "score": 1}]}, "unknown"),
        ("rubric_binary", {"results": marks(1, 0.5)}, 'the "score" of k2 must be 1 or 0, and is 0.5'),
        ("rubric_binary", {"results": marks(1, True)}, 'the "score" of k2 must be a number, and is True'),
        ("rubric_binary", {"results": marks("1", 1)}, "the \"score\" of k1 must be a number, and is '1'"),
        ("rubric_binary", {"results": marks(None, 1)}, "must be a number, and is None"),
        ("rubric_partial", {"results": marks(10**400, 1)}, "must be a number"),
        ("rubric_partial", {"results": marks(2, 1)}, 'the "score" of k1 is wrong: 2 is outside 0 to 1'),
        ("rubric_evidence", {"results": marks(1, 1)}, 'the "evidence_status" of k1 must be one of visible'),
        ("trajectory_mistakes", {**CLEAN, "coverage": [{"id": "k1", "shown": "yes"}]}, "missing: k2"),
        ("trajectory_mistakes", {"coverage": [{"id": k, "shown": 1} for k in CRITERIA]}, '"shown" of k1'),
        ("trajectory_mistakes", {"coverage": [{"id": k, "shown": True} for k in CRITERIA]}, '"findings" must be'),
        ("trajectory_mistakes", {**CLEAN, "findings": [{"severity": ["low"]}], "coverage":
         [{"id": k, "shown": True} for k in CRITERIA]}, '"severity" of a finding must be one of low, medium'),
    ],
)  # fmt: skip
def test_what_is_no_verdict(form: str, answer: dict[str, Any], said: str):
    with pytest.raises(ValueError, match=said):
        FORMS[form].read(answer, CRITERIA)


def test_keys_are_made_anew_for_each_question():
    one, other = keyed(CRITERIA.values()), keyed(CRITERIA.values())
    assert list(one) != list(other)
    assert list(one.values()) == list(CRITERIA.values())


@pytest.mark.parametrize(
    ("criterion", "said"),
    [
        ({"criterion": "c"}, "criteria.0.id: should be a text"),
        ({"id": "", "criterion": "c"}, "criteria.0.id: should be a text"),
        ({"id": "a"}, "criteria.0 has no text"),
        ({"id": "a", "criterion": "c", "weight": "1"}, "criteria.0.weight: should be a finite number, not '1'"),
        ({"id": "a", "criterion": "c", "outcomes": []}, "criteria.0.outcomes: each should be an object"),
        ({"id": "a", "criterion": "c", "outcomes": {"min": 1, "max": 1}}, "criteria.0.outcomes: 'min' and 'max'"),
        ({"id": "a", "criterion": "c", "outcomes": 3}, "criteria.0.outcomes: should be a list"),
        ({"id": "a", "title": "t", "pass_threshold": None, "weight": 0}, ""),
    ],
)
def test_faults_of_criteria(criterion: dict[str, Any], said: str):
    assert next(criteria_faults([criterion]), "").startswith(said)
    assert not said or next(criteria_faults([criterion]), "")


def test_an_id_must_not_be_there_twice():
    assert list(criteria_faults([{"id": "a", "title": "t"}] * 2)) == [
        "criteria.1.id: 'a' is also that of an earlier criterion"
    ]

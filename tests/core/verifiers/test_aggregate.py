from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env_core.verifiers.aggregate import AGGREGATORS, aggregate, check_rows

T, F = {"result": True}, {"result": False}
INF = float("inf")


@pytest.mark.parametrize(
    ("rows", "all_pass", "any_pass", "average"),
    [
        ([], 0.0, 0.0, 0.0),
        ([T], 1.0, 1.0, 1.0),
        ([F], 0.0, 0.0, 0.0),
        ([T, F], 0.0, 1.0, 0.5),
        ([{}], 0.0, 0.0, 0.0),
        ([{"result": None}], 0.0, 0.0, 0.0),
        ([{"score": 1.0}], 0.0, 0.0, 1.0),  # without a result nothing passed, whatever the score
        ([{"result": 1}], 0.0, 0.0, 1.0),  # only True passes; an average takes what is true enough
        ([{"result": True, "score": 0.25}], 1.0, 1.0, 0.25),
        ([{"result": True, "score": None}], 1.0, 1.0, 1.0),
        ([{"result": True, "score": 0}], 1.0, 1.0, 0.0),
        ([{**T, "weight": 3}, F], 0.0, 1.0, 0.75),
        ([{**T, "weight": None}, F], 0.0, 1.0, 0.5),
        ([{**T, "weight": 0}, F], 0.0, 1.0, 0.0),  # weight 0 only reports
        ([{**T, "weight": 0}], 1.0, 1.0, 0.0),  # no positive weight
        ([{**T, "weight": -1}], 1.0, 1.0, 0.0),
        ([T, {**T, "weight": -10}], 1.0, 1.0, 1.0),  # a gate that holds costs nothing
        ([T, {**F, "weight": -10}], 0.0, 1.0, 0.0),  # one that doesn't takes off, down to 0
        ([T, {"result": False, "score": 0.75, "weight": -2}], 0.0, 1.0, 0.5),
        ([{"result": True, "score": 7}], 1.0, 1.0, 1.0),  # rows aren't clamped, the total is
        ([{"result": True, "score": -7}], 1.0, 1.0, 0.0),
        ([{"result": True, "score": 3}, {"result": False, "score": -1}], 0.0, 1.0, 1.0),
        ([{"result": True, "score": True}], 1.0, 1.0, 1.0),
    ],
)
def test_aggregators(rows: list[dict[str, Any]], all_pass: float, any_pass: float, average: float):
    assert check_rows(rows) is rows
    scores = [aggregate(name, rows) for name in ("all_pass", "any_pass", "weighted_average")]
    assert scores == [all_pass, any_pass, pytest.approx(average)]
    assert all(type(score) is float for score in scores)


def test_there_are_three():
    assert sorted(AGGREGATORS) == ["all_pass", "any_pass", "weighted_average"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "must return a list of dicts, and returned None"),
        ({"result": True}, "must return a list of dicts, and returned {'result': True}"),
        ([1], r"row 0 must be a dict, and is 1 \(int\)"),
        ([T, {"id": "x", "score": "0.5"}], r"score of row 1 \('x'\) must be a finite number, and is '0.5' \(str\)"),
        ([{"score": float("nan")}], "score of row 0 must be a finite number, and is nan"),
        ([{"score": INF}], "must be a finite number, and is inf"),
        ([{"score": [1]}], "must be a finite number"),
        ([{"weight": -INF}], "weight of row 0 must be a finite number"),
        ([{"weight": "heavy"}], "weight of row 0 must be a finite number"),
        ([{"score": 10**400}], r"score of row 0 must be a finite number, and is a number of 1329 bits \(int\)"),
        ([{"weight": "x" * 500}], "x…"),
    ],
)
def test_rows_that_cant_be_scored(rows: Any, said: str):
    with pytest.raises(ValueError, match=said):
        check_rows(rows)


@pytest.mark.parametrize("result", ["False", "fail", "", {}, [1]])
def test_a_result_that_is_read_must_be_true_or_false(result: Any):
    """``"fail"`` would count as true."""
    for name in ("all_pass", "any_pass", "weighted_average"):
        with pytest.raises(ValueError, match="result of row 1 must be True or False, and is"):
            aggregate(name, check_rows([T, {"result": result}]))


def test_a_result_beside_a_score_is_evidence_where_only_the_score_is_read():
    rows = check_rows([{"id": "a", "result": "partly", "score": 0.5}])
    assert aggregate("weighted_average", rows) == 0.5
    with pytest.raises(ValueError, match=r"result of row 0 \('a'\) must be True or False, and is 'partly'"):
        aggregate("all_pass", rows)


@pytest.mark.parametrize(
    "rows",
    [
        [{"score": 1e308, "weight": 1e308}, {"score": -1e308, "weight": -1e308}],
        [{"score": 0.5, "weight": 1e308}, {"score": 0.5, "weight": 1e308}],  # the sum of the weights is no number
        [{"score": 1e308, "weight": 10}],
        [T, {"score": -1e308, "weight": -10}],
    ],
)
def test_numbers_that_overflow_are_no_score(rows: list[dict[str, Any]]):
    with pytest.raises(ValueError, match="no finite score"):
        aggregate("weighted_average", check_rows(rows))


numbers = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.integers(-(10**400), 10**400))
values = st.one_of(numbers, st.text(max_size=3), st.lists(st.integers(), max_size=1))
odd_rows = st.fixed_dictionaries({}, optional={"result": values, "score": values, "weight": values})


def exact(rows: list[dict[str, Any]]) -> Fraction:
    """The format's formula in exact numbers."""
    gained, lost, total = Fraction(0), Fraction(0), Fraction(0)
    for row in rows:
        weight = Fraction(1) if row.get("weight") is None else Fraction(row["weight"])
        score = Fraction(bool(row.get("result"))) if row.get("score") is None else Fraction(row["score"])
        if weight > 0:
            gained, total = gained + weight * score, total + weight
        else:
            lost += -weight * (1 - score)
    return min(Fraction(1), max(Fraction(0), (gained - lost) / total)) if total else Fraction(0)


@given(st.lists(odd_rows, max_size=4))
def test_rows_have_their_exact_score_or_none(rows: list[dict[str, Any]]):
    """Whatever a verifier returns: the score of the formula, or a ``ValueError``. Never a 0 that stands for a fault."""
    for name in AGGREGATORS:
        try:
            score = aggregate(name, check_rows(rows))
        except ValueError:
            continue
        if name == "weighted_average":
            widest = max((abs(float(row.get("weight") or 1) * float(row.get("score") or 1)) for row in rows), default=1)
            total = sum(float(1 if row.get("weight") is None else row["weight"]) for row in rows
                        if (1 if row.get("weight") is None else row["weight"]) > 0) or 1.0  # fmt: skip
            assert abs(score - float(exact(rows))) <= 1e-12 * max(1.0, widest / total)
        else:
            combine = all if name == "all_pass" else any
            assert score == float(bool(rows) and combine(row.get("result") is True for row in rows))

from __future__ import annotations

from typing import Any

import pytest

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
        ([{"result": "False"}], r"result of row 0 must be True or False, and is 'False' \(str\)"),
        ([{"result": {}}], "result of row 0 must be True or False"),
        ([{"result": "x" * 500}], "x…"),
    ],
)
def test_rows_that_cant_be_scored(rows: Any, said: str):
    with pytest.raises(ValueError, match=said):
        check_rows(rows)


def test_weights_that_overflow_are_no_score():
    rows = [{"score": 1e308, "weight": 1e308}, {"score": -1e308, "weight": -1e308}]
    with pytest.raises(ValueError, match="no finite score"):
        aggregate("weighted_average", rows)

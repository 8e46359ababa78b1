"""Means, intervals and pass@k, against values worked out elsewhere."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from agent_env_core.evaluate.statistics import mean_of, pass_at, student_t
from agent_env_core.evaluate.summary import Episode, summarize
from agent_env_core.models import Usage


@pytest.mark.parametrize(
    ("degrees", "quantile"),  # from printed tables of the 97.5% quantile
    [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (9, 2.262),
        (10, 2.228),
        (30, 2.042),
        (120, 1.980),
        (5000, 1.960),
    ],
)
def test_students_quantile(degrees: int, quantile: float):
    assert student_t(0.975, degrees) == pytest.approx(quantile, abs=6e-4)


def test_a_mean_and_its_interval():
    found = mean_of({"a": [1.0], "b": [2.0], "c": [3.0], "d": [4.0]})
    assert found is not None
    half = 3.182446 * (5 / 3) ** 0.5 / 2  # t of 3 degrees, times s over the root of 4
    assert (found.mean, found.tasks, found.episodes) == (2.5, 4, 4)
    assert (found.low, found.high) == (pytest.approx(2.5 - half, abs=1e-5), pytest.approx(2.5 + half, abs=1e-5))


def test_tasks_weigh_the_same_however_many_of_their_episodes_scored():
    found = mean_of({"a": [0.0, 0.0, 0.0, 0.0], "b": [1.0], "c": []})
    assert found is not None
    assert (found.mean, found.tasks, found.episodes) == (0.5, 2, 5)


def test_repeats_of_a_task_are_no_news():
    once = mean_of({"a": [0.2], "b": [0.4], "c": [0.9]})
    often = mean_of({"a": [0.2] * 8, "b": [0.4] * 8, "c": [0.9] * 8})
    assert once is not None
    assert often is not None
    assert (once.low, once.high) == (pytest.approx(often.low), pytest.approx(often.high))


def test_one_task_is_judged_by_its_episodes():
    found = mean_of({"a": [0.4, 0.6]})
    assert found is not None
    assert found.low == 0.0  # cut: no score lies below
    assert found.high == 1.0


@pytest.mark.parametrize("values", [{"a": [0.5]}, {"a": [1.0], "b": [1.0]}, {"a": [0.1] * 3, "b": [0.1] * 3}])
def test_no_interval_where_nothing_can_be_said(values: dict[str, list[float]]):
    found = mean_of(values)
    assert found is not None
    assert (found.low, found.high) == (None, None)


def test_no_values_no_mean():
    assert mean_of({}) is None
    assert mean_of({"a": []}) is None


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 3, 4), (4, 0, 2), (4, 4, 2), (3, 1, 3)])
def test_pass_at_k_counts_the_draws_that_hold_a_pass(n: int, c: int, k: int):
    tries = [True] * c + [False] * (n - c)
    draws = list(itertools.combinations(tries, k))
    assert pass_at(k, {"a": tries}) == (pytest.approx(float(Fraction(sum(map(any, draws)), len(draws)))), 1)


def test_pass_at_k_is_over_the_tasks_with_enough_episodes():
    assert pass_at(2, {"a": [True, False], "b": [False, False], "c": [True]}) == (0.5, 2)
    assert pass_at(4, {"a": [True, False]}) is None


def episode(task: str, outcome: str, reward: float | None, reason: str = "") -> Episode:
    scores = {} if reward is None else {"grade": reward}
    return Episode(task, outcome, reward, scores, "deploy" if reason else "", reason, True, Usage(2, 1), 3, 2, 1.0)  # type: ignore[arg-type]


def test_failures_are_counted_apart_and_never_as_0():
    episodes = {
        ("a", 0): episode("a", "passed", 1.0),
        ("a", 1): episode("a", "failed", None, "no room"),
        ("b", 0): episode("b", "below_one", 0.5),
        ("b", 1): episode("b", "failed", None, "no room"),
        ("c", 0): episode("c", "cancelled", None),
        ("d", 0): episode("d", "unscored", None),
    }
    summary = summarize(episodes, planned=8, repeat=2, seconds=9.0)
    assert summary.score is not None
    assert (summary.score.mean, summary.score.episodes, summary.score.tasks) == (0.75, 2, 2)
    assert summary.outcomes == {"passed": 1, "below_one": 1, "unscored": 1, "failed": 2, "cancelled": 1}
    assert [(f.reason, f.episodes, f.retryable) for f in summary.failures] == [("no room", 2, True)]
    assert summary.pass_at == {1: (0.5, 2)}  # no task has two scored episodes
    assert (summary.usage, summary.answers, summary.tool_calls) == (Usage(12, 6), 18, 12)
    assert [(task.task, task.mean) for task in summary.tasks] == [("a", 1.0), ("b", 0.5), ("c", None), ("d", None)]
    told = summary.to_json()
    assert (told["planned"], told["episodes"], told["score"]["level"]) == (8, 6, 0.95)


def test_several_scores_are_told_apart():
    one = Episode("a", "below_one", 0.5, {"x": 1.0, "y": 0.0}, "", "", False, Usage(), 1, 0, 1.0)
    summary = summarize({("a", 0): one}, planned=1, repeat=1, seconds=1.0)
    assert {step: mean.mean for step, mean in summary.scores.items()} == {"x": 1.0, "y": 0.0}

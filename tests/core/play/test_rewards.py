from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import pytest

from agent_env_core.adapters import Combiner
from agent_env_core.errors import EpisodeError, PluginError
from agent_env_core.play.rewards import resolve_reward

SCORES = {"grade": 0.5, "style": 1.0}


def a_function(scores: Any) -> float:
    return scores["grade"] * 2


@pytest.mark.parametrize(
    ("reward", "ids", "expected"),
    [
        (None, ["grade"], 0.5),
        (None, [], None),
        ("grade", ["grade", "style"], 0.5),
        ("mean", ["grade", "style"], 0.75),
        ("min", ["grade", "style"], 0.5),
        ("weighted:grade=0.8,style=0.2", ["grade", "style"], 0.6),
        ("weighted: grade = 2 ", ["grade", "style"], 1.0),
        ("weighted:grade=-1,style=1", ["grade", "style"], 0.5),
        (a_function, ["grade", "style"], 1.0),
        (lambda scores: None, ["grade"], None),
        (lambda scores: 1, ["grade"], 1.0),
        (lambda scores: Fraction(1, 4), ["grade"], 0.25),
    ],
)
def test_rewards(reward: str | Combiner | None, ids: list[str], expected: float | None):
    value = resolve_reward(reward, ids)(SCORES)
    assert value == (None if expected is None else pytest.approx(expected))
    assert value is None or type(value) is float


def test_a_step_id_wins_over_a_combiner_of_that_name():
    assert resolve_reward("mean", ["mean", "x"])({"mean": 0.1, "x": 0.9}) == 0.1


@pytest.mark.parametrize("name", ["mean", "min"])
def test_no_scores_have_no_mean(name: str):
    assert resolve_reward(name, [])({}) is None


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (None, r"several scores \(grade, style\).*reward=\"<step id>\".*as --reward"),
        ("grades", r"'grades' is neither a step .*\(grade, style\) nor a combiner \(.*mean.*weighted"),
        (3, r"reward=3 can't be used: give the id of a scoring step, a combiner"),
        ("mean:2", r"'mean' takes nothing after a colon"),
        ("weighted", r"can't be read at ''"),
        ("weighted:grade", r"can't be read at 'grade'"),
        ("weighted:grade=x", r"can't be read at 'grade=x'"),
        ("weighted:grade=nan", r"can't be read at 'grade=nan'"),
        ("weighted:grade=1,grade=2", r"can't be read at 'grade=2'"),
        ("weighted:look=1", r"no task records: look; recorded are: grade, style"),
    ],
)
def test_what_cant_work_is_refused_before_anything_is_served(reward: Any, said: str):
    with pytest.raises(ValueError, match=said):
        resolve_reward(reward, ["grade", "style"])


def test_the_name_of_something_else_is_no_reward():
    with pytest.raises(PluginError, match="registers no reward combiner"):
        resolve_reward("deploy_env", ["grade"])


def raising(scores: Any) -> float:
    return scores["missing"]


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        (lambda scores: float("nan"), "returned nan"),
        (lambda scores: float("inf"), "returned inf"),
        (lambda scores: "1.0", "returned '1.0'"),
        (lambda scores: True, r"the bool True: return a number, e\.g\. float\(True\)"),
        (lambda scores: [1.0], "returned"),
        (lambda scores: 10**400, "returned"),
        (raising, "the reward function 'raising' raised KeyError: 'missing'; the scores were: grade=0.5, style=1"),
    ],
)
def test_a_reward_that_is_none_leaves_the_rollout_unscored(reward: Combiner, said: str):
    with pytest.raises(EpisodeError, match=said) as caught:
        resolve_reward(reward, ["grade", "style"])(SCORES)
    assert caught.value.phase == "reward"


def test_a_score_that_is_missing_is_no_zero():
    with pytest.raises(EpisodeError, match="recorded no score 'style'; it recorded: grade"):
        resolve_reward("weighted:grade=1,style=1", ["grade", "style"])({"grade": 1.0})
    with pytest.raises(EpisodeError, match="recorded no score 'grade'; it recorded: none"):
        resolve_reward(None, ["grade"])({})


def test_rewards_pickle_into_a_trainers_worker():
    for reward in (None, "mean", "weighted:grade=1", a_function):
        combiner = resolve_reward(reward, ["grade"])
        assert pickle.loads(pickle.dumps(combiner))({"grade": 0.5}) == combiner({"grade": 0.5})

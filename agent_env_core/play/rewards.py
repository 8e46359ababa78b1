"""From an episode's scores to the reward a trainer learns from.

Used on the server (to refuse a ``reward=`` that can't work before anything is served) and on the trainer's side (where
a user's function runs), so nothing here needs what only a server has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env_core.adapters import Combiner, Scores
from agent_env_core.errors import EpisodeError, describe
from agent_env_core.hookspecs import hookimpl
from agent_env_core.plugins import plugins

_KINDS = 'give the id of a scoring step, a combiner such as "mean", or a function of the scores'


def resolve_reward(reward: str | Combiner | None, score_ids: Sequence[str]) -> Combiner:
    """The function from scores to reward that ``reward=`` asks for.

    Args:
        reward: None for the task's only score; the id of a scoring step; a combiner such as ``"mean"`` or
            ``"weighted:grade=0.8,style=0.2"`` (a step of that id wins); or a function of the scores.
        score_ids: The steps that score the tasks it will be used on.

    Returns:
        A function that returns a finite float, or None where the scores hold no reward. It raises ``EpisodeError`` of
        phase ``reward`` when there is none to be had: the rollout is then unscored.

    Raises:
        ValueError: ``reward`` can't fit these tasks.
        PluginError: The combiner's plugin is broken.
    """
    if callable(reward):
        return _Checked(reward, _name_of(reward))
    if reward is None:
        if len(score_ids) > 1:
            raise ValueError(
                f'the tasks record several scores ({", ".join(score_ids)}): choose one with reward="<step id>", or'
                ' combine them with reward="mean", "min", "weighted:…" or a function of the scores;'
                " `agent-env serve` takes it as --reward"
            )
        return _Checked(_Only(score_ids[0]), f"reward={score_ids[0]!r}") if score_ids else _no_reward
    if reward in score_ids:
        return _Checked(_Only(reward), f"reward={reward!r}")
    if not isinstance(reward, str):
        raise ValueError(f"reward={reward!r} can't be used: {_KINDS}")
    name = reward.partition(":")[0]
    if name not in {entry.name for entry in plugins().entries}:
        raise ValueError(
            f"reward={reward!r} is neither a step that scores these tasks ({', '.join(score_ids) or 'there is none'})"
            f" nor a combiner ({', '.join(plugins().known('reward combiner'))})"
        )
    combiner = plugins().reward_combiner(reward)
    strangers = sorted(set(getattr(combiner, "needs", ())) - set(score_ids))
    if strangers:
        raise ValueError(
            f"reward={reward!r} names scores that no task records: {', '.join(strangers)};"
            f" recorded are: {', '.join(score_ids) or 'none'}"
        )
    return _Checked(combiner, f"reward={reward!r}")


def _no_reward(scores: Scores) -> float | None:
    return None


def _name_of(function: Callable[..., Any]) -> str:
    return f"the reward function {getattr(function, '__name__', type(function).__name__)!r}"


@dataclass(frozen=True)
class _Checked:
    """A combiner whose every outcome is a finite float, None, or an ``EpisodeError`` that says what is wrong.

    A class, not a closure, so that it pickles into a trainer's worker process.
    """

    combiner: Combiner
    name: str

    def __call__(self, scores: Scores) -> float | None:
        try:
            value: Any = self.combiner(scores)
        except EpisodeError:
            raise
        except Exception as exc:
            had = ", ".join(f"{key}={value:g}" for key, value in scores.items()) or "none"
            raise EpisodeError("reward", f"{self.name} raised {describe(exc)}; the scores were: {had}") from exc
        return None if value is None else _finite(value, self.name)


def _finite(value: Any, name: str) -> float:
    kind = type(value).__name__
    if kind.startswith("bool"):
        raise EpisodeError("reward", f"{name} returned the {kind} {value!r}: return a number, e.g. float({value!r})")
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise EpisodeError("reward", f"{name} returned {value!r} ({kind}): a reward is a finite number or None")
    return number


@dataclass(frozen=True)
class _Only:
    """One score as the reward."""

    step_id: str

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.step_id})

    def __call__(self, scores: Scores) -> float:
        return _score(scores, self.step_id)


@dataclass(frozen=True)
class _Weighted:
    """A weighted sum of named scores."""

    weights: tuple[tuple[str, float], ...]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(step_id for step_id, _ in self.weights)

    def __call__(self, scores: Scores) -> float:
        return math.fsum(weight * _score(scores, step_id) for step_id, weight in self.weights)


def _score(scores: Scores, step_id: str) -> float:
    if step_id not in scores:
        had = ", ".join(scores) or "none"
        raise EpisodeError("reward", f"the episode recorded no score {step_id!r}; it recorded: {had}")
    return scores[step_id]


def _mean(scores: Scores) -> float | None:
    return math.fsum(scores.values()) / len(scores) if scores else None


def _min(scores: Scores) -> float | None:
    return min(scores.values(), default=None)


def _bare(combiner: Combiner, name: str) -> Callable[[str], Combiner]:
    def factory(text: str) -> Combiner:
        if text:
            raise ValueError(f"reward={name + ':' + text!r}: {name!r} takes nothing after a colon")
        return combiner

    return factory


def _weighted(text: str) -> Combiner:
    weights: dict[str, float] = {}
    for part in _parts(text):
        step_id, equals, number = (piece.strip() for piece in part.rpartition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not step_id or not equals or not math.isfinite(weight) or step_id in weights:
            raise ValueError(
                f"reward='weighted:{text}' can't be read at {part!r}: write weighted:<step id>=<number>,…, each id once"
            )
        weights[step_id] = weight
    return _Weighted(tuple(weights.items()))


def _parts(text: str) -> Iterable[str]:
    return [part.strip() for part in text.split(",")]


@hookimpl
def agent_env_reward_combiners(register: Callable[[str, Callable[[str], Combiner]], None]) -> None:
    """Registers ``mean``, ``min`` and ``weighted:<step id>=<weight>,…``."""
    register("mean", _bare(_mean, "mean"))
    register("min", _bare(_min, "min"))
    register("weighted", _weighted)

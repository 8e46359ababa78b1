"""What a server serves: tasks by split, their rows, their toolsets, their rewards. Read once, before anything runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env_core.adapters import Combiner
from agent_env_core.bundle import Bundle, Task, load_bundle
from agent_env_core.bundle.names import nearest
from agent_env_core.errors import BundleError, EpisodeRefused, Problem
from agent_env_core.play.refusals import by_reason, few
from agent_env_core.play.rewards import resolve_reward
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.play.toolsets import toolset_key, toolset_names
from agent_env_core.steps.base import declaration

logger = logging.getLogger(__name__)

Path = str | os.PathLike[str]
Reward = str | Combiner | None


@dataclass(frozen=True)
class Served:
    """A task that can be played.

    Attributes:
        spec: How it is played.
        toolset: The name of its toolset.
        reward: Its scores to its reward.
    """

    spec: EpisodeSpec
    toolset: str
    reward: Combiner

    @property
    def task(self) -> Task:
        """The task."""
        return self.spec.task


@dataclass(frozen=True)
class Place:
    """A task at its place in a split."""

    served: Served
    split: str
    index: int

    @property
    def described(self) -> dict[str, Any]:
        """The task as observations name it."""
        task = self.served.task
        return {"id": task.id, "name": task.name, "split": self.split, "index": self.index}


class NoSuchTask(LookupError):
    """What a reset asked for isn't served; the message says what is."""


@dataclass(frozen=True)
class Catalog:
    """Everything served.

    Attributes:
        name: The bundle's name; several are joined with ``+``.
        description: What the bundle is about.
        bundles: The bundles, each once.
        splits: Split to its tasks, in order.
        rows: Split to what the Task API answers for each task.
        toolsets: Toolset name to a task that has it, sorted by name.
    """

    name: str
    description: str
    bundles: tuple[Bundle, ...]
    splits: Mapping[str, tuple[Served, ...]]
    rows: Mapping[str, tuple[Mapping[str, Any], ...]]
    toolsets: Mapping[str, Served]
    _by_id: Mapping[str, tuple[str, int]] = field(repr=False)

    @property
    def env_name(self) -> str:
        """The name that OpenEnv's routes carry."""
        return self.name.replace(".", "-")

    @property
    def served(self) -> list[Served]:
        """Every task once."""
        return list({task.spec.task.id: task for tasks in self.splits.values() for task in tasks}.values())

    @property
    def score_ids(self) -> tuple[str, ...]:
        """The steps that score every task."""
        served = self.served
        common = set.intersection(*(set(task.spec.score_ids) for task in served))
        return tuple(score_id for score_id in served[0].spec.score_ids if score_id in common)

    def without(self, task_ids: Collection[str]) -> Catalog:
        """The same catalog with some tasks left out."""
        if not task_ids:
            return self
        splits = {
            split: [served for served in tasks if served.task.id not in task_ids]
            for split, tasks in self.splits.items()
        }
        return _indexed(self.name, self.description, self.bundles, splits)

    def find(self, split: object = None, index: object = None, task_id: object = None) -> Place:
        """The task that a reset asks for: by split and index, by id, or the first one.

        Raises:
            NoSuchTask: It isn't served, or the id isn't that of the task at this place.
        """
        if (split is None) != (index is None):
            raise NoSuchTask(f"split={split!r} and index={index!r} go together: give both, or neither")
        if split is None:
            split, index = self._first() if task_id is None else self._placed(task_id)
        if not isinstance(split, str) or split not in self.splits:
            close = nearest(split, self.splits) if isinstance(split, str) else ""
            meant = f"did you mean {close!r}? " if close else ""
            raise NoSuchTask(f"there is no split {split!r}; {meant}there are: {', '.join(self.splits)}")
        tasks = self.splits[split]
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(tasks):
            raise NoSuchTask(f"index={index!r} is no task of the split {split!r}: it has 0 to {len(tasks) - 1}")
        place = Place(tasks[index], split, index)
        if task_id is not None and task_id != place.served.task.id:
            raise NoSuchTask(
                f"the task at index {index} of split {split!r} is {place.served.task.id}, not {task_id}: the row is of"
                " another bundle, or of another version of it; read the dataset from this server again"
            )
        return place

    def _first(self) -> tuple[str, int]:
        return next((split, 0) for split, tasks in self.splits.items() if tasks)

    def _placed(self, task_id: object) -> tuple[str, int]:
        if not isinstance(task_id, str) or task_id not in self._by_id:
            raise NoSuchTask(f"there is no task {task_id!r}")
        return self._by_id[task_id]


def read_catalog(bundle: Path | Mapping[str, Path], reward: Reward = None) -> Catalog:
    """Reads what to serve.

    Args:
        bundle: A bundle's folder: its splits are ``all`` and one per eval. Or folders by split: exactly those splits.
        reward: None for a task's only score, a step id, a combiner, or a function of the scores.

    Raises:
        BundleError: A bundle can't be read, or none of its tasks can be played.
        ValueError: ``reward`` doesn't fit the tasks, or no bundle is given.
    """
    if isinstance(bundle, Mapping):
        if not bundle:
            raise ValueError("bundle={} serves nothing: give a folder, or folders by split")
        loaded = {split: load_bundle(path, declaration) for split, path in bundle.items()}
        tasks = {split: one.tasks for split, one in loaded.items()}
        bundles = tuple({one.root: one for one in loaded.values()}.values())
    else:
        whole = load_bundle(bundle, declaration)
        tasks, bundles = whole.splits(), (whole,)
    return _catalog(bundles, tasks, reward)


def _catalog(bundles: Sequence[Bundle], tasks: Mapping[str, Sequence[Task]], reward: Reward) -> Catalog:
    specs = _playable(bundles, tasks)
    names = toolset_names(spec.task for spec in specs.values())
    rewards: dict[tuple[str, ...], Combiner] = {}
    served = {
        task_id: Served(spec, names[toolset_key(spec.task)], _reward(reward, spec, rewards))
        for task_id, spec in specs.items()
    }
    if unscored := sum(not spec.score_ids for spec in specs.values()):
        logger.warning("%d of %d tasks have no verifier: their reward is always None", unscored, len(specs))
    return _indexed(
        "+".join(dict.fromkeys(bundle.name for bundle in bundles)),
        next((bundle.description for bundle in bundles if bundle.description), ""),
        tuple(bundles),
        {split: [served[task.id] for task in ones if task.id in served] for split, ones in tasks.items()},
    )


def _indexed(
    name: str, description: str, bundles: tuple[Bundle, ...], splits: Mapping[str, Sequence[Served]]
) -> Catalog:
    by_id: dict[str, tuple[str, int]] = {}
    toolsets: dict[str, Served] = {}
    for split, tasks in splits.items():
        for index, served in enumerate(tasks):
            by_id.setdefault(served.task.id, (split, index))
            toolsets.setdefault(served.toolset, served)
    return Catalog(
        name=name,
        description=description,
        bundles=bundles,
        splits={split: tuple(tasks) for split, tasks in splits.items()},
        rows={split: tuple(_row(one, index) for index, one in enumerate(tasks)) for split, tasks in splits.items()},
        toolsets=dict(sorted(toolsets.items())),
        _by_id=by_id,
    )


def _playable(bundles: Sequence[Bundle], tasks: Mapping[str, Sequence[Task]]) -> dict[str, EpisodeSpec]:
    """The specs of all tasks that can be played, by task id; the others are left out with a warning."""
    specs: dict[str, EpisodeSpec] = {}
    refused: dict[str, EpisodeRefused] = {}
    for task in (task for ones in tasks.values() for task in ones):
        if task.id in specs or task.id in refused:
            continue
        try:
            specs[task.id] = EpisodeSpec.from_task(task)
        except EpisodeRefused as exc:
            refused[task.id] = exc
    known = {task.id: task.name for ones in tasks.values() for task in ones}
    left_out = [one for bundle in bundles for one in bundle.left_out]
    reasons = [(one.name, _reason(one.problems)) for one in left_out]
    reasons += [(known[task_id], _reason(refusal.problems)) for task_id, refusal in refused.items()]
    for reason, names in by_reason(reasons).items():
        logger.warning("left out %d of %d tasks (%s): %s", len(names), len(known) + len(left_out), few(names), reason)
    if not specs:
        where = ", ".join(str(bundle.root) for bundle in bundles)
        problems = [problem for refusal in refused.values() for problem in refusal.problems]
        problems += [problem for bundle in bundles for problem in bundle.problems]
        raise BundleError(where, problems or [bundle.without_tasks() for bundle in bundles])
    return specs


def _reason(problems: Iterable[Problem]) -> str:
    """Why a task is left out, without its name: tasks are left out for the same reasons."""
    steps = [(problem.place.partition(":")[2], problem) for problem in problems]
    told = [f"step {step!r}: {problem.message}" if step else f"it {problem.message}" for step, problem in steps]
    return "; ".join(told)


def _reward(reward: Reward, spec: EpisodeSpec, known: dict[tuple[str, ...], Combiner]) -> Combiner:
    """The combiner for a task; tasks with the same scores share it."""
    if spec.score_ids not in known:
        try:
            known[spec.score_ids] = resolve_reward(reward, spec.score_ids)
        except ValueError as exc:
            raise ValueError(f"{exc} (first met in the task {spec.task.name!r})") from None
    return known[spec.score_ids]


def _row(served: Served, index: int) -> dict[str, Any]:
    first = served.spec.prompts[0]
    return {
        "id": served.task.id,
        "name": served.task.name,
        "index": index,
        "prompt": first.prompt,
        "system_prompt": first.system_prompt,
        "agent": first.agent,
        "toolset": served.toolset,
    }


def sandboxes_of(task: Task) -> int:
    """How many sandboxes an episode of the task has at once. A played agent has one only where it works in one."""
    kinds = [str(step.get("type", "")) for step in task.steps]
    return max(1, sum(kind.startswith("deploy_") and kind != "deploy_agent" for kind in kinds))

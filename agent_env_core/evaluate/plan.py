"""Which tasks of a bundle an evaluation plays, read and checked before anything runs."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agent_env_core.bundle import Bundle, Eval, Task
from agent_env_core.bundle.model import LeftOut
from agent_env_core.errors import AgentEnvError, EpisodeRefused, Problem
from agent_env_core.play.refusals import few
from agent_env_core.play.spec import EpisodeSpec

Found = Task | LeftOut
Entity = TypeVar("Entity", Found, Eval)


class NothingSelected(AgentEnvError):
    """A selection that names what the bundle doesn't have; the message says what it has."""


@dataclass(frozen=True)
class Selected:
    """A task that was selected.

    Attributes:
        id: Its id.
        name: Its name.
        digest: Which version of it this is: a short hash of its steps, empty where they can't be read.
    """

    id: str
    name: str
    digest: str


@dataclass(frozen=True)
class Plan:
    """The tasks of one evaluation.

    Attributes:
        bundle: Where they are.
        tasks: The selected tasks, in order, each once.
        specs: Those that can be played, by task id.
        refused: Why others can't, by task id.
        skipped: Names of the bundle's tasks that are not selected.
        seed: What ``<key>`` in the tasks' texts becomes.
    """

    bundle: Bundle
    tasks: tuple[Selected, ...]
    specs: Mapping[str, EpisodeSpec]
    refused: Mapping[str, str]
    skipped: tuple[str, ...]
    seed: Mapping[str, str]


def make_plan(
    bundle: Bundle, tasks: Sequence[str] = (), evals: Sequence[str] = (), seed: Mapping[str, str] | None = None
) -> Plan:
    """Selects tasks: those named, and those of the evals named. Without either, those of every eval, or all.

    Args:
        bundle: The bundle.
        tasks: Names or ids of tasks.
        evals: Names or ids of evals.
        seed: ``<key>`` in any text of any step becomes the key's value.

    Raises:
        NothingSelected: The bundle has no such task or eval, or no tasks at all.
    """
    everything: list[Found] = sorted([*bundle.tasks, *bundle.left_out], key=lambda task: task.name)
    chosen = _chosen(bundle, everything, tasks, evals)
    specs: dict[str, EpisodeSpec] = {}
    refused: dict[str, str] = {}
    for task in chosen:
        if isinstance(task, LeftOut):
            refused[task.id] = _reasons(task.problems)
            continue
        try:
            specs[task.id] = EpisodeSpec.from_task(task, seed=seed, evaluation=True)
        except EpisodeRefused as exc:
            refused[task.id] = _reasons(exc.problems)
    ids = {task.id for task in chosen}
    return Plan(
        bundle=bundle,
        tasks=tuple(Selected(task.id, task.name, _digest(task)) for task in chosen),
        specs=specs,
        refused=refused,
        skipped=tuple(task.name for task in everything if task.id not in ids),
        seed=dict(seed or {}),
    )


def _chosen(bundle: Bundle, everything: list[Found], tasks: Sequence[str], evals: Sequence[str]) -> list[Found]:
    by_id = {task.id: task for task in everything}
    known = list(bundle.evals.values())
    if tasks or evals:
        found = [_named(bundle, "task", name, everything) for name in tasks]
        known = [_named(bundle, "eval", name, known) for name in evals]
    else:
        found = [] if known else everything
    found = [*found, *(by_id[task_id] for one in known for task_id in one.tasks)]
    if not found:
        fix = f" ({bundle.without_tasks().fix})" if not everything else ""
        raise NothingSelected(f"the bundle {bundle.name!r} has no tasks to run{fix}")
    return list({task.id: task for task in found}.values())


def _named(bundle: Bundle, kind: str, name: str, known: Iterable[Entity]) -> Entity:
    """The task or eval of that name or id."""
    entities = list(known)
    for entity in entities:
        if name in (entity.name, entity.id):
            return entity
    names = [entity.name for entity in entities]
    near = difflib.get_close_matches(name, names, n=3)
    fix = f"did you mean {' or '.join(near)}?" if near else f"it has: {few(names) if names else 'none'}"
    raise NothingSelected(f"the bundle {bundle.name!r} has no {kind} {name!r}; {fix}")


def _digest(task: Found) -> str:
    if isinstance(task, LeftOut):
        return ""
    return hashlib.sha256(json.dumps(task.steps, sort_keys=True).encode()).hexdigest()[:16]


def _reasons(problems: Iterable[Problem]) -> str:
    """Why a task is refused, without its name."""
    told = []
    for problem in problems:
        step = problem.place.partition(":")[2]
        fix = f" ({problem.fix})" if problem.fix else ""
        told.append((f"step {step!r}: " if step else "it ") + problem.message + fix)
    return "; ".join(told)

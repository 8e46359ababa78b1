"""Which tasks of a bundle an evaluation plays, read and checked before anything runs."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agent_env_core.bundle import Bundle, Eval, Task
from agent_env_core.errors import AgentEnvError, EpisodeRefused
from agent_env_core.play.refusals import few
from agent_env_core.play.spec import EpisodeSpec

Entity = TypeVar("Entity", Task, Eval)


class NothingSelected(AgentEnvError):
    """A selection that names what the bundle doesn't have; the message says what it has."""


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
    tasks: tuple[Task, ...]
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
    chosen = _chosen(bundle, tasks, evals)
    specs: dict[str, EpisodeSpec] = {}
    refused: dict[str, str] = {}
    for task in chosen:
        try:
            specs[task.id] = EpisodeSpec.from_task(task, seed=seed, evaluation=True)
        except EpisodeRefused as exc:
            refused[task.id] = "; ".join(_told(problem.place, problem.message, problem.fix) for problem in exc.problems)
    skipped = tuple(task.name for task in bundle.tasks if task not in chosen)
    return Plan(bundle, chosen, specs, refused, skipped, dict(seed or {}))


def digest(task: Task) -> str:
    """Tells whether a task is the same as it was: a short hash of its steps."""
    return hashlib.sha256(json.dumps(task.steps, sort_keys=True).encode()).hexdigest()[:16]


def _chosen(bundle: Bundle, tasks: Sequence[str], evals: Sequence[str]) -> tuple[Task, ...]:
    by_id = {task.id: task for task in bundle.tasks}
    known_evals = tuple(bundle.evals.values())
    if not tasks and not evals and not known_evals:
        found = list(bundle.tasks)
    else:
        chosen_evals = [_named(bundle, "eval", name, known_evals) for name in evals] if tasks or evals else known_evals
        found = [_named(bundle, "task", name, bundle.tasks) for name in tasks]
        found += [by_id[task_id] for one in chosen_evals for task_id in one.tasks]
    if not found:
        raise NothingSelected(f"the bundle {bundle.name!r} has no tasks to run")
    return tuple({task.id: task for task in found}.values())


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


def _told(place: str, message: str, fix: str) -> str:
    step = place.partition(":")[2]
    return (f"step {step!r}: " if step else "it ") + message + (f" ({fix})" if fix else "")

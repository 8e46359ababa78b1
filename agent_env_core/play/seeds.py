"""The seed of a run: ``<key>`` in any text of any step becomes the key's value, in names of entities too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_core.bundle.names import listed, quote
from agent_env_core.bundle.references import Reference, an, slots, waits
from agent_env_core.errors import PluginError
from agent_env_core.play.refusals import Refusal
from agent_env_core.plugins import plugins

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle, Task


def seeded(task: Task, seed: Mapping[str, str]) -> tuple[list[dict[str, Any]], list[Refusal]]:
    """A task's steps with the seed filled in, and what in them names nothing.

    The bundle reader has made ids of all names but those that waited for the seed; these are made ids here.

    Args:
        task: The task.
        seed: Values by key.
    """
    steps, refusals = [], []
    for written in task.steps:
        step = _filled(dict(written), seed)
        for reference in _references(written):
            pairs = zip(slots(written, reference), slots(step, reference), strict=True)
            waiting = [(holder, key) for (source, at), (holder, key) in pairs if waits(source[at])]
            for holder, key in waiting:
                refusals += [(str(step.get("id")), *why) for why in _named(task.bundle, reference, holder, key)]
        steps.append(step)
    return steps, refusals


def _filled(value: Any, seed: Mapping[str, str]) -> Any:
    """A copy of a JSON value with ``<key>`` replaced in each of its texts."""
    if not seed:
        return value
    if isinstance(value, str):
        for key, text in seed.items():
            value = value.replace(f"<{key}>", text)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(item, seed) for key, item in value.items()}
    return [_filled(item, seed) for item in value] if isinstance(value, list) else value


def _references(step: Mapping[str, Any]) -> tuple[Reference, ...]:
    try:
        found = plugins().step_type(str(step.get("type"))).references
    except PluginError:  # told of where the step is made
        return ()
    # Nothing needs to know an agent: the model takes its place, whoever it is.
    return tuple(reference for reference in found if not reference.output and reference.kind != "agent")


def _named(bundle: Bundle, reference: Reference, holder: Any, key: Any) -> Iterator[tuple[str, str]]:
    """Makes an id of a name that a seed brought; or tells why there is none, and what to do about it."""
    value = holder[key]
    label, kind = reference.field, reference.kind
    if waits(value):
        yield f"{label}: {quote(value)} waits for a seed", "fill it in with --seed KEY=VALUE of agent-env run"
        return
    found = bundle.find(kind, value)
    if found is None:
        names = listed(entity.name for entity in (bundle.envs if kind == "env" else bundle.artifacts).values())
        yield f"{label}: {quote(value)}, as the seed has it, is not in this bundle", f"name {an(kind)} of: {names}"
        return
    wanted, has = reference.artifact_type, getattr(found, "type", "skill")
    if wanted and wanted != has:
        yield f"{label}: {quote(value)} is of type {has}, and {wanted} is needed", ""
    holder[key] = found.id  # a copy's: nothing waits where there is no seed

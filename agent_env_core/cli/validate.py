"""``agent-env validate``: whether a bundle can be used, and every reason why not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from agent_env_core.errors import BundleError, EpisodeRefused, Problem

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle


@click.command()
@click.argument("bundle")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def validate(bundle: str, as_json: bool) -> None:
    """Read BUNDLE, a folder or the name of an installed bundle, and list every problem in it; exit with 1 if any.

    A task with a problem is left out when the bundle is served, and the others are served. Told of too, and no problem:
    sound tasks that a trainer can't play, and fields that nobody reads and that look like a misspelling.
    """
    from agent_env_core.bundle import load_bundle
    from agent_env_core.steps.base import declaration

    try:
        loaded = load_bundle(bundle, declaration)
    except BundleError as exc:
        if not as_json:
            raise
        click.echo(json.dumps({"bundle": bundle, "problems": _rows(exc.problems)}, indent=2))
        raise click.exceptions.Exit(1) from exc
    refused, ignored = _refused(loaded), _ignored(loaded)
    if as_json:
        report = {
            "bundle": bundle,
            "problems": _rows(loaded.problems),
            "splits": {split: len(tasks) for split, tasks in loaded.splits().items()},
            "left_out": [task.name for task in loaded.left_out],
            "not_playable": {name: _rows(problems) for name, problems in refused.items()},
            "ignored_fields": _rows(ignored),
        }
        click.echo(json.dumps(report, indent=2))
    else:
        _print(loaded, refused, ignored)
    if loaded.problems:
        raise click.exceptions.Exit(1)


def _refused(bundle: Bundle) -> dict[str, tuple[Problem, ...]]:
    """The sound tasks that a trainer can't play, and why."""
    from agent_env_core.play.spec import EpisodeSpec

    refused = {}
    for task in bundle.tasks:
        try:
            EpisodeSpec.from_task(task)
        except EpisodeRefused as exc:
            refused[task.name] = exc.problems
    return refused


def _ignored(bundle: Bundle) -> list[Problem]:
    """Fields of the tasks that were left out of account, where they look like others that would not have been."""
    from agent_env_core.bundle.names import quote, show
    from agent_env_core.steps.base import misspelt

    return [
        Problem(
            f"tasks/{task.path.name}:{show(step['id'])}",
            f"the field {quote(name)} is ignored",
            f"did you mean {meant!r}?",
        )
        for task in bundle.tasks
        for step in task.steps
        for name, meant in misspelt(step).items()
    ]


def _rows(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    rows = []
    for problem in problems:
        file, _, step = problem.place.partition(":")
        rows.append({"file": file, "step": step or None, "message": problem.message, "fix": problem.fix})
    return rows


def _print(bundle: Bundle, refused: dict[str, tuple[Problem, ...]], ignored: list[Problem]) -> None:
    from agent_env_core.play.refusals import by_reason, few

    for problem in bundle.problems:
        click.echo(str(problem), err=True)
    sizes = ", ".join(f"{name} {len(tasks):,}" for name, tasks in bundle.splits().items())
    summary = f"{bundle.name}: {_count(len(bundle.envs), 'env')}, {_count(len(bundle.tasks), 'task')} (splits: {sizes})"
    wrong = _count(len(bundle.problems), "problem") if bundle.problems else "no problems"
    left_out = f", {_count(len(bundle.left_out), 'task')} left out" if bundle.left_out else ""
    click.echo(f"{summary}{left_out}, {wrong}")
    if not bundle.tasks and not bundle.left_out:
        click.echo(str(bundle.without_tasks()))
    reasons = ((name, "; ".join(problem.message for problem in problems)) for name, problems in refused.items())
    for reason, names in by_reason(reasons).items():
        click.echo(f"not for training: {few(names)}: {reason}")
    fields = ((problem.place, f"{problem.message} ({problem.fix})") for problem in ignored)
    for reason, places in by_reason(fields).items():
        click.echo(f"ignored: {few(places)}: {reason}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

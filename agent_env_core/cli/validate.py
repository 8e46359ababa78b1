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

    A task with a problem is left out when the bundle is served, and the others are served. A task that is sound and
    prompts no agent, so that there is nothing to train, is told of too and is no problem.
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
    refused = _refused(loaded)
    if as_json:
        report = {
            "bundle": bundle,
            "problems": _rows(loaded.problems),
            "splits": {split: len(tasks) for split, tasks in loaded.splits().items()},
            "left_out": [task.name for task in loaded.left_out],
            "not_playable": {name: _rows(problems) for name, problems in refused.items()},
        }
        click.echo(json.dumps(report, indent=2))
    else:
        _print(loaded, refused)
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


def _rows(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    rows = []
    for problem in problems:
        file, _, step = problem.place.partition(":")
        rows.append({"file": file, "step": step or None, "message": problem.message, "fix": problem.fix})
    return rows


def _print(bundle: Bundle, refused: dict[str, tuple[Problem, ...]]) -> None:
    from agent_env_core.play.refusals import by_reason, few

    for problem in bundle.problems:
        click.echo(str(problem), err=True)
    sizes = ", ".join(f"{name} {len(tasks):,}" for name, tasks in bundle.splits().items())
    summary = f"{bundle.name}: {_count(len(bundle.envs), 'env')}, {_count(len(bundle.tasks), 'task')} (splits: {sizes})"
    wrong = _count(len(bundle.problems), "problem") if bundle.problems else "no problems"
    left_out = f", {_count(len(bundle.left_out), 'task')} left out" if bundle.left_out else ""
    click.echo(f"{summary}{left_out}, {wrong}")
    pairs = ((name, "; ".join(problem.message for problem in problems)) for name, problems in refused.items())
    for reason, names in by_reason(pairs).items():
        click.echo(f"not for training: {few(names)}: {reason}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

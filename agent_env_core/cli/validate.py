"""``agent-env validate``: whether a bundle can be used, and every reason why not."""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent_env_core.errors import BundleError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def validate(bundle: Path, as_json: bool) -> None:
    """Read BUNDLE, a folder, and list every problem in it; exit with 1 if there is one."""
    from agent_env_core.bundle import load_bundle
    from agent_env_core.steps.base import declaration

    try:
        loaded = load_bundle(bundle, declaration)
    except BundleError as exc:
        if not as_json:
            raise
        problems = [{"place": p.place, "message": p.message, "fix": p.fix} for p in exc.problems]
        click.echo(json.dumps({"bundle": str(bundle), "problems": problems}, indent=2))
        raise click.exceptions.Exit(1) from exc
    counts = {split: len(tasks) for split, tasks in loaded.splits().items()}
    if as_json:
        click.echo(json.dumps({"bundle": str(bundle), "problems": [], "splits": counts}, indent=2))
    else:
        sizes = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        envs = "1 env" if len(loaded.envs) == 1 else f"{len(loaded.envs)} envs"
        tasks = "1 task" if len(loaded.tasks) == 1 else f"{len(loaded.tasks):,} tasks"
        click.echo(f"{loaded.name}: {envs}, {tasks} (splits: {sizes}), no problems")

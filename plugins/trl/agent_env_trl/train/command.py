"""``agent-env train``: the command, and the hook that adds it."""

from __future__ import annotations

from pathlib import Path

import click

from agent_env_core.hookspecs import hookimpl


@click.command()
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE",
              help="Set a key of the file, e.g. arguments.max_steps=10; may be given again.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check everything and play one rollout by hand; load no model.")
@click.pass_context
def train(ctx: click.Context, config: Path, assignments: tuple[str, ...], dry_run: bool) -> None:
    """Train a model on the tasks of a bundle, as the file CONFIG says.

    The whole set-up is checked first, and every problem is listed with its fix, before a model is loaded. Start it with
    torchrun or accelerate launch (-m agent_env_core.cli train CONFIG) for several processes.
    """
    from agent_env_trl.train import dry_run as by_hand
    from agent_env_trl.train.document import read
    from agent_env_trl.train.settings import Settings
    from agent_env_trl.train.setup import Setup, main_process

    def say(line: str) -> None:
        if main_process():
            click.echo(line, err=True)

    run = Setup(Settings.of(read(config, assignments), config), config).run()
    with run.env:
        tasks = len(run.env.dataset)
        say(f"{run.env.info.name}: {tasks} tasks of {run.settings.split}, {run.adapter.name} on {run.settings.model}")
        if dry_run:
            ctx.exit(0 if not main_process() or by_hand.play(run.env, click.echo) is not None else 1)
        if run.checkpoint:
            say(f"going on from {run.checkpoint}")
        trainer = run.trainer()
        trainer.train(resume_from_checkpoint=run.checkpoint)
        trainer.save_model()


@hookimpl
def agent_env_commands(cli: click.Group) -> None:
    """Adds ``train``."""
    cli.add_command(train)

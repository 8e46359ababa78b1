"""``agent-env plugins``: what is installed, and what became of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

from agent_env_core.plugins import Entry
from agent_env_core.plugins import plugins as the_plugins

FORMAT_VERSION = 1
BROKEN = ("failed", "conflict")


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool) -> None:
    """List the plugins, built-ins included, and what became of each."""
    if ctx.invoked_subcommand is None:
        entries = the_plugins().load_all()
        click.echo(_json(entries)) if as_json else _print_table(entries)


@plugins.command()
def check() -> None:
    """Load every plugin; exit with 1 and name each one that is broken."""
    entries = the_plugins().load_all()
    broken = [entry for entry in entries if entry.status in BROKEN]
    for entry in broken:
        click.echo(f"{entry.name} ({entry.distribution} {entry.version}, {entry.value}) {entry.status}: {entry.detail}")
    if broken:
        raise click.exceptions.Exit(1)
    click.echo(f"{len(entries)} plugins, none broken")


def _json(entries: Sequence[Entry]) -> str:
    keys = ("name", "group", "distribution", "version", "value", "status", "provides", "detail", "trace")
    report = [{key: getattr(entry, key) for key in keys} for entry in entries]
    return json.dumps({"format_version": FORMAT_VERSION, "plugins": report}, indent=2)


def _print_table(entries: Sequence[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("name", "what", "from", "status"):
        table.add_column(heading, overflow="fold")
    for entry in entries:
        style = {"loaded": "green", "failed": "red", "conflict": "red"}.get(entry.status, "yellow")
        what = ", ".join(entry.provides) or entry.value
        table.add_row(entry.name, what, f"{entry.distribution} {entry.version}", Text(entry.status, style=style))
    # A pipe has no width: the columns then get what they need.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    for entry in entries:
        if entry.detail:
            click.echo(f"{entry.name}: {entry.detail}")

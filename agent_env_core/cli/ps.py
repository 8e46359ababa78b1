"""``agent-env ps``: the sandboxes there are, whose they are, and for how long."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agent_env_core.sandbox.survey import Found, Survey

FORMAT_VERSION = 1
COLOURS = {"alive": "green", "dead": "red", "unknown": "yellow"}

verbose_option = click.option("-v", "--verbose", is_flag=True, help="Say what providers lack that aren't set up here.")
provider_option = click.option(
    "--provider", "names", multiple=True, metavar="NAME", help="Ask only this provider; repeatable."
)


@click.command()
@provider_option
@verbose_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def ps(names: tuple[str, ...], verbose: bool, as_json: bool) -> None:
    """List the sandboxes that agent-env made, on this machine and on accounts that providers use from here.

    Exits with 1 if a provider could not be asked. One that isn't set up here (no key, no engine, no package) is passed
    by, unless --provider names it.
    """
    from agent_env_core.sandbox.survey import look

    survey = look(names)
    if as_json:
        rows = [_plain(found) for found in survey.found]
        report = {"format_version": FORMAT_VERSION, "sandboxes": rows}
        click.echo(json.dumps(report | {"silent": survey.silent, "not_set_up": survey.absent}, indent=2))
    else:
        _print(survey)
        tell_others(survey.silent, survey.absent, verbose=verbose)
    if survey.silent:
        raise click.exceptions.Exit(1)


def _print(survey: Survey) -> None:
    if not survey.found:
        click.echo("there are no sandboxes")
        return
    table = [("PROVIDER", "SANDBOX", "RUN", "ENV", "AGE", "ENDS IN", "OWNER", "")]
    table += [
        (
            found.provider, found.id[:16], found.run, found.env or "-", span(found.age), span(found.left),
            _owner(found), f"{found.state}{f' ({found.why})' if found.why else ''}",
        )
        for found in survey.found
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    for number, row in enumerate(table):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        colour = COLOURS[survey.found[number - 1].state] if number else None
        click.echo("  ".join([*cells, click.style(row[-1], fg=colour)]).rstrip())


def tell_others(silent: Mapping[str, str], absent: Mapping[str, str], *, verbose: bool) -> None:
    """Says on standard error whose answer is missing: who can't be asked with its reason, the others by name."""
    for name, reason in silent.items():
        click.echo(f"{name} can't be asked: {reason.removeprefix(f'{name}: ')}", err=True)
    if verbose:
        for name, reason in absent.items():
            click.secho(f"{name} isn't set up here: {reason.removeprefix(f'{name}: ')}", dim=True, err=True)
    elif absent:
        click.secho(f"not set up here, so not asked: {', '.join(absent)}", dim=True, err=True)


def span(seconds: float | None) -> str:
    """A time in words that fit a column: ``45 s``, ``12 min``, ``3.5 h``; ``over`` where it's past."""
    if seconds is None:
        return "?"
    if seconds < 0:
        return "over"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _owner(found: Found) -> str:
    return f"{found.owner.pid} on {found.owner.host}" if found.owner is not None else "-"


def _plain(found: Found) -> dict[str, object]:
    return dataclasses.asdict(found) | {"owner": str(found.owner) if found.owner is not None else None}

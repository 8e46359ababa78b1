"""``agent-env doctor``: what is here, what isn't, and the fix for each problem."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agent_env_core.cli.health import Finding

FORMAT_VERSION = 1
SIGNS = {"ok": ("✓", "green"), "absent": ("·", None), "note": ("!", "yellow"), "problem": ("✗", "red")}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def doctor(as_json: bool) -> None:
    """Show what agent-env finds on this machine, each problem with its fix; exit with 1 if one blocks."""
    from agent_env_core.cli.health import examine

    findings = examine()
    problems = sum(finding.level == "problem" for finding in findings)
    if as_json:
        report = {"format_version": FORMAT_VERSION, "ok": not problems}
        click.echo(json.dumps(report | {"findings": [dataclasses.asdict(f) for f in findings]}, indent=2))
    else:
        _print(findings)
        click.echo(
            f"\n{problems} problem{'s' * (problems != 1)} to solve" if problems else "\nnothing stands in the way"
        )
    if problems:
        raise click.exceptions.Exit(1)


def _print(findings: Sequence[Finding]) -> None:
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        section = list(group)
        width = max(len(finding.subject) for finding in section)
        click.secho(topic, bold=True)
        for finding in section:
            sign, colour = SIGNS[finding.level]
            click.echo(f"  {click.style(sign, fg=colour)} {finding.subject:<{width}}  {finding.value}")
            if finding.fix:
                click.echo(f"    {'':<{width}}  → {finding.fix}")

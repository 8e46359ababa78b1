"""``agent-env sandbox``: which providers there are, what one can do, and whether it keeps the contract."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from agent_env_core.plugins import plugins
from agent_env_core.sandbox.probe import look

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import Capabilities, SandboxProvider
    from agent_env_core.testing.checks.base import Check
    from agent_env_core.testing.running import Result

FORMAT_VERSION = 1
BASE_IMAGE = "python:3.11-slim"
SIGNS = {"passed": ("✓", "green"), "failed": ("✗", "red"), "skipped": ("·", None)}
MEANINGS = {
    "isolation": "what stands between two sandboxes",
    "remote": "they run on another machine",
    "build": "images are built from a Dockerfile",
    "refs": "images are taken from a registry",
    "gpu": "a sandbox can have a GPU",
    "limits": "the limits that are kept",
    "network": "the network policies that are kept",
    "private_files": "no sandbox sees a file of another, whatever its path",
    "ttl_enforced": "the provider itself ends a sandbox whose time is over",
    "extend": "a sandbox's time can be extended",
    "max_ttl": "the longest time to live, in seconds",
    "creates_per_second": "how many sandboxes may be created in a second",
}


@click.group()
def sandbox() -> None:
    """Show sandbox providers, and check one against the contract."""


def _settings(ctx: click.Context, _: click.Parameter, pairs: Sequence[str]) -> dict[str, str]:
    """Reads ``name=value`` pairs."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} must look like name=value")
        settings[name] = value
    return settings


config_option = click.option(
    "--config", multiple=True, metavar="NAME=VALUE", callback=_settings, help="A setting of the provider; repeatable."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@sandbox.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the sandbox providers that are installed, and whether each can be used here."""
    rows = [_looked_at(name) for name in plugins().known("sandbox provider")]
    if as_json:
        click.echo(json.dumps({"format_version": FORMAT_VERSION, "providers": rows}, indent=2))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        sign, colour = SIGNS["failed" if row["problem"] else "passed"]
        can = row["capabilities"]
        value = row["problem"] or f"isolation: {can['isolation']}; {_powers(can)}"
        click.echo(f"{click.style(sign, fg=colour)} {row['name']:<{width}}  {value}")
    if not rows:
        click.echo("there is none: pip install 'agentenv-framework[docker]', or [process], which needs no Docker")


def _looked_at(name: str) -> dict[str, Any]:
    found = look(name)
    can = None if found.problem or found.capabilities is None else _plain(found.capabilities)
    return {"name": name, "problem": found.problem, "capabilities": can}


def _plain(can: Capabilities) -> dict[str, Any]:
    return {**dataclasses.asdict(can), "limits": sorted(can.limits), "network": sorted(can.network)}


def _powers(can: Mapping[str, Any]) -> str:
    words = {"build": "builds images", "refs": "pulls images", "gpu": "GPUs"}
    words |= {"ttl_enforced": "keeps TTLs itself", "remote": "elsewhere"}
    limits = [f"limits {' and '.join(can['limits'])}"] if can["limits"] else []
    return ", ".join([*(word for name, word in words.items() if can[name]), *limits])


@sandbox.command()
@click.argument("name")
@config_option
@json_option
def show(name: str, config: dict[str, str], as_json: bool) -> None:
    """Show what the provider NAME can do here, and what can be set on it."""
    factory = plugins().sandbox_provider(name)
    model = getattr(factory, "settings_model", None)
    table = None if model is None else model.table()
    found = look(name, config)
    problem, can = found.problem, None if found.capabilities is None else _plain(found.capabilities)
    if as_json:
        report = {"format_version": FORMAT_VERSION, "name": name, "problem": problem}
        click.echo(json.dumps(report | {"capabilities": can, "settings": table}, indent=2))
        return
    click.secho(name, bold=True)
    if problem:
        click.echo(f"  {click.style('✗', fg='red')} it can't be used like this: {problem}")
    if can is not None:
        rows = [[key, _word(value), MEANINGS.get(key, "")] for key, value in can.items()]
        _print_table("capabilities", ["capability", "here", "meaning"], rows)
    if table is None:
        click.echo("\nits plugin doesn't describe its settings; see its README")
    elif table:
        keys = ["name", "type", "default", "meaning"]
        _print_table("settings", ["setting", *keys[1:]], [[row[key] for key in keys] for row in table])
    else:
        click.echo("\nit has no settings")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (", ".join(map(str, value)) if isinstance(value, list) else str(value or "")) or "none"


def _print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, title=None)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    click.echo(f"\n{title}")
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@sandbox.command()
@click.argument("name")
@config_option
@click.option("--only", multiple=True, metavar="WORDS", help="Only checks of that subject, or with that in their name.")
@click.option("--image", default=BASE_IMAGE, help="What images are built on: it needs sh, the usual tools and python3.")
@click.option("--gpu", metavar="TYPE", help="A GPU type to ask for, where the provider claims GPUs.")
@click.option("--yes", is_flag=True, help="Don't ask before something is made on an account.")
@json_option
def check(
    name: str, config: dict[str, str], only: tuple[str, ...], image: str, gpu: str | None, yes: bool, as_json: bool
) -> None:
    """Check that the provider NAME keeps the contract, on the real thing; exit with 1 if it doesn't.

    Says first what it makes at most, and ends all of it. Interrupting it clears away too.
    """
    from agent_env_core.testing.running import choose

    try:
        checks = choose(only)
    except ValueError as exc:
        raise click.UsageError(f"{exc}; subjects: {_subjects()}") from exc
    provider = plugins().sandbox_provider(name)(config)
    remote = provider.capabilities.remote
    if not as_json:
        _announce(name, checks, image, remote=remote)
    if remote and not yes:
        click.confirm("Go on?", abort=True, err=True)
    teller = _Teller(quiet=as_json)
    try:
        results = asyncio.run(_run(provider, checks, image, gpu, teller))
    except KeyboardInterrupt:
        click.echo("\ninterrupted; what had been made was ended", err=True)
        raise click.exceptions.Exit(130) from None
    failed = sum(result.outcome == "failed" for result in results)
    if as_json:
        click.echo(json.dumps(_report(name, provider.capabilities, results), indent=2))
    else:
        skipped = sum(result.outcome == "skipped" for result in results)
        seconds = sum(result.seconds for result in results)
        kept = len(results) - failed - skipped
        click.echo(
            f"\n{kept} kept, {failed} broken, {skipped} don't apply, in {seconds:.0f} s; nothing is left running"
        )
    if failed:
        raise click.exceptions.Exit(1)


def _subjects() -> str:
    from agent_env_core.testing.checks import SUBJECTS

    return ", ".join(SUBJECTS)


def _announce(name: str, checks: Sequence[Check], image: str, *, remote: bool) -> None:
    from agent_env_core.testing.checks.base import LONGEST_TTL

    boxes, most = sum(check.boxes for check in checks), max(check.boxes for check in checks)
    images = 1 + sum(check.builds for check in checks)
    built = "1 image, a small one" if images == 1 else f"{images} images, small ones"
    click.echo(
        f"{name}: {len(checks)} checks, one after another. They make at most {boxes} sandboxes, {most} at once, and end"
        f" each with its check; none is given more than {LONGEST_TTL / 60:.0f} minutes to live. They prepare at most"
        f" {built} on top of {image}."
    )
    if remote:
        click.echo("They run elsewhere, on your account, and cost what it charges for that.")


async def _run(
    provider: SandboxProvider, checks: Sequence[Check], image: str, gpu: str | None, teller: _Teller
) -> list[Result]:
    from agent_env_core.testing.running import run_checks

    try:
        return await run_checks(provider, checks, base_image=image, gpu=gpu, before=teller.begins, after=teller.ended)
    finally:
        await provider.aclose()


class _Teller:
    """Prints each check as it goes."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._subject = quiet, ""
        self._moving = not quiet and sys.stdout.isatty()

    def begins(self, check: Check) -> None:
        if not self._quiet and check.subject != self._subject:
            self._subject = check.subject
            click.secho(f"\n{check.subject}", bold=True)
        if self._moving:
            click.echo(f"  … {check.title}\r", nl=False)

    def ended(self, result: Result) -> None:
        if self._quiet:
            return
        sign, colour = SIGNS[result.outcome]
        seconds = f"{result.seconds:.1f} s" if result.outcome != "skipped" else ""
        click.echo(f"  {click.style(sign, fg=colour)} {result.check.title:<72} {seconds:>7}".rstrip())
        if result.reason:
            click.echo(f"      {result.reason}")


def _report(name: str, can: Capabilities, results: Sequence[Result]) -> dict[str, Any]:
    rows = [
        {
            "name": result.check.name,
            "subject": result.check.subject,
            "outcome": result.outcome,
            "reason": result.reason,
            "seconds": round(result.seconds, 3),
        }
        for result in results
    ]
    ok = all(result.outcome != "failed" for result in results)
    return {"format_version": FORMAT_VERSION, "provider": name, "ok": ok, "capabilities": _plain(can), "checks": rows}

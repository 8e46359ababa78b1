"""``agent-env gc``: ends what dead runs left, and removes images that nothing uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from agent_env_core.cli.ps import provider_option, tell_others, verbose_option

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import Unused
    from agent_env_core.sandbox.leases import Reaped
    from agent_env_core.sandbox.survey import Answers, Survey

MIB = 1 << 20


@click.command()
@provider_option
@verbose_option
@click.option("--images", is_flag=True, help="Also images and caches that agent-env made and no sandbox uses.")
@click.option("--yes", is_flag=True, help="Do it; without this, only what would be done is shown.")
def gc(names: tuple[str, ...], verbose: bool, images: bool, yes: bool) -> None:
    """End sandboxes whose owner is dead or whose lease is over. What belongs to a living process is never touched.

    Exits with 1 if something could not be ended or removed, or a provider could not be asked. One that isn't set up
    here (no key, no engine, no package) is passed by, unless --provider names it.
    """
    failed, asked = _sandboxes(names, yes)
    silent = dict(asked.silent)
    if images:
        unremoved, prunable = _images(names, yes)
        failed, silent = failed or unremoved, prunable.silent | silent
    tell_others(silent, asked.absent, verbose=verbose)
    failed = failed or bool(silent)
    if not yes:
        click.echo("nothing was changed; --yes does it")
    if failed:
        raise click.exceptions.Exit(1)


def _sandboxes(names: tuple[str, ...], yes: bool) -> tuple[bool, Survey | Answers[Reaped]]:
    """Ends or shows sandboxes; says whether something stayed that shouldn't, and who was asked in vain."""
    from agent_env_core.sandbox.survey import look, sweep

    if not yes:
        survey = look(names)
        doomed = [found for found in survey.found if found.why]
        _each(f"would end {found.provider} sandbox {found.id[:16]}: {found.why}" for found in doomed)
        left = len(survey.found) - len(doomed)
        click.echo(f"{_number(len(doomed), 'sandbox', 'es')} to end, {left} in use")
        return False, survey
    done = sweep(names)
    for name, reaped in done.given.items():
        _each(f"ended {name} sandbox {id[:16]}: {reason}" for id, reason in reaped.killed.items())
        for id, reason in reaped.failed.items():
            click.echo(f"could not end {name} sandbox {id}: {reason}", err=True)
    click.echo(f"{_number(sum(len(reaped.killed) for reaped in done.given.values()), 'sandbox', 'es')} ended")
    return any(reaped.failed for reaped in done.given.values()), done


def _images(names: tuple[str, ...], yes: bool) -> tuple[bool, Answers[Sequence[Unused]]]:
    """Removes or shows what isn't used; says whether something stayed that shouldn't, and who was asked in vain."""
    from agent_env_core.sandbox.survey import prune, unused

    found = unused(names)
    failed: dict[str, str] = {}
    gone: list[Unused] = []
    for name, things in found.given.items():
        going = {thing.id for thing in things}
        if yes:
            going, unremoved = prune(name, [thing.id for thing in things])
            failed |= {thing.what: unremoved[thing.id] for thing in things if thing.id in unremoved}
        those = [thing for thing in things if thing.id in going]
        _each(f"{'removed' if yes else 'would remove'} {name} {thing.what}{_size([thing])}" for thing in those)
        gone += those
    for what, reason in failed.items():
        click.echo(f"could not remove {what}: {reason}", err=True)
    click.echo(f"{_number(len(gone), 'image')} {'removed' if yes else 'to remove'}{_size(gone)}")
    return bool(failed), found


def _each(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


def _number(count: int, thing: str, plural: str = "s") -> str:
    return f"{count} {thing}{'' if count == 1 else plural}"


def _size(things: Iterable[Unused]) -> str:
    sizes = [thing.size for thing in things if thing.size is not None]
    return f", {sum(sizes) / MIB:.0f} MiB" if sizes else ""

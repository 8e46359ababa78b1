"""``python -m bench``: measures, prints tables, and keeps the figures where it is told to."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import click
from rich.console import Console

from agent_env_core.errors import AgentEnvError, ConfigError, PluginError
from bench import measure
from bench.calls import BUNDLES, Bundle
from bench.measure import Amounts
from bench.report import HISTORY, PAGE, Report
from bench.targets import MANY

PROVIDERS = ("docker", "process")


def _sessions(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Reads ``1,8,32``."""
    if text is None:
        return None
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise click.BadParameter(f"{text!r} must be numbers from 1 on, e.g. 1,8,32")
    return numbers


@click.command(context_settings={"show_default": True})
@click.option("--bundle", type=click.Choice([*BUNDLES, "both"]), default="gridsim", help="What is deployed and played.")
@click.option(
    "--provider",
    type=click.Choice(PROVIDERS),
    multiple=True,
    help="Repeatable; the first of them that works here otherwise.",
)
@click.option("--sessions", callback=_sessions, metavar="N,N", help="Sessions side by side; 1,32 otherwise.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds of each side; 12 with one session, fewer with more.")
@click.option("--batch", callback=_sessions, metavar="N,N", help="Rollouts in a trainer's batch; 8,32,64 otherwise.")
@click.option("--calls", type=click.IntRange(1), help="Tool calls of each side; 1000 otherwise.")
@click.option("--quick", is_flag=True, help="About a minute: little of everything, and only fit to see that it works.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Writes all figures here.")
@click.option(
    "--record",
    is_flag=True,
    help=f"Adds to bench/{HISTORY.name}, and writes the targets' table into docs/{PAGE.name}.",
)
def main(
    bundle: str,
    provider: tuple[str, ...],
    sessions: tuple[int, ...] | None,
    rounds: int | None,
    batch: tuple[int, ...] | None,
    calls: int | None,
    quick: bool,
    json_file: Path | None,
    record: bool,
) -> None:
    """Measures agent-env beside its floor: the same sandboxes, started and called by hand, in the same run."""
    signal.signal(signal.SIGTERM, _stop)
    amounts = Amounts(
        sessions=sessions or ((1, 4) if quick else (1, 32)),
        rounds=lambda n: rounds or (2 if quick else _usual_rounds(n)),
        calls=calls or (50 if quick else 1000),
        sizes=batch or ((4,) if quick else (8, 32, 64)),
        imports=3 if quick else 11,
        crowd=32 if quick else MANY,
        crowds=1 if quick else 3,
        removals=3 if quick else 20,
    )
    bundles = list(BUNDLES.values()) if bundle == "both" else [BUNDLES[bundle]]
    report = Report(
        {"bundle": bundle, "sessions": amounts.sessions, "batch": amounts.sizes, "calls": amounts.calls, "quick": quick}
    )
    say = _teller()
    say("starts of Python")
    report.imports = dict(measure.imports(amounts.imports))
    for chosen in bundles:
        for name in provider or PROVIDERS:
            if _measure(report, chosen, name, amounts, say, required=bool(provider)) and not provider:
                break
    _in_memory(report, amounts, say)
    report.show(Console(width=None if sys.stdout.isatty() else 160))
    if json_file is not None:
        json_file.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
    if record:
        report.record()
    if not report.measured:
        raise click.ClickException("no provider can be used here; agent-env doctor says why")


def _measure(
    report: Report, bundle: Bundle, provider: str, amounts: Amounts, say: measure.Say, *, required: bool
) -> bool:
    """Measures on one provider; one that can't be used here is left out, and False, unless it was asked for."""
    from bench.product import Unscored, prepare

    say(f"{bundle.name} on {provider}: preparing the image")
    try:
        prepared = prepare(bundle, provider)
    except (ConfigError, PluginError) as exc:
        if required:
            raise click.ClickException(str(exc)) from None
        report.skipped[provider] = str(exc)
        return False
    except AgentEnvError as exc:
        raise click.ClickException(str(exc)) from None
    try:
        report.measured.append(
            measure.everything(prepared, amounts, lambda line: say(f"{bundle.name} on {provider}: {line}"))
        )
    except (AgentEnvError, Unscored, TimeoutError) as exc:
        raise click.ClickException(f"{bundle.name} on {provider}: {exc}") from exc
    return True


def _usual_rounds(number: int) -> int:
    """Rounds of each side with so many sessions or rollouts at once."""
    return 12 if number == 1 else 3 if number <= 32 else 1


def _in_memory(report: Report, amounts: Amounts, say: measure.Say) -> None:
    """Measures what needs no provider."""
    from bench import memory
    from bench.product import Unscored

    try:
        say(f"{amounts.removals} episodes in memory whose removal takes long")
        report.teardown = memory.teardown(amounts.removals)
        say(f"{amounts.crowds} rounds of {amounts.crowd} sessions in memory")
        report.crowd = memory.crowd(amounts.crowd, amounts.crowds)
    except (AgentEnvError, Unscored) as exc:
        raise click.ClickException(f"in memory: {exc}") from exc


def _stop(number: int, _: object) -> None:
    """Ends as an error does, so that what was started by hand is ended too."""
    raise SystemExit(128 + number)


def _teller() -> measure.Say:
    began = time.monotonic()
    return lambda line: click.echo(f"bench: {time.monotonic() - began:4.0f} s  {line}", err=True)


if __name__ == "__main__":
    main()

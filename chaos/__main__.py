"""``python -m chaos``: plays schedules, prints each seed, and keeps the smallest schedule that fails."""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click

from chaos.judge import violations
from chaos.play import Aftermath, Limits, run
from chaos.schedule import Schedule, make, shrink

PROVIDERS = ("fake", "process", "docker")
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def provider_of(name: str) -> object:
    """A new provider: the fake one with the counter's application, or a real one by its name."""
    if name == "fake":
        from agent_env_core.testing.fake import FakeProvider
        from chaos.envs import Counter as Env

        return FakeProvider(app=Env)
    from agent_env_core.plugins import plugins

    return plugins().sandbox_provider(name)({})


async def play(schedule: Schedule, provider: str, limits: Limits) -> tuple[Aftermath, list[str]]:
    """Plays a schedule on a new provider and judges it."""
    with tempfile.TemporaryDirectory(prefix="agent-env-chaos-") as shared:
        aftermath = await run(schedule, provider_of(provider), limits, Path(shared))  # type: ignore[arg-type]
    return aftermath, violations(schedule, aftermath, limits)


@click.command(context_settings={"show_default": True})
@click.option("--provider", type=click.Choice(PROVIDERS), default="fake", help="What makes sandboxes.")
@click.option("--rollouts", type=click.IntRange(1), default=2000, help="How many in all.")
@click.option("--batch", type=click.IntRange(1), default=250, help="How many side by side.")
@click.option("--seed", type=int, envvar="SEED", help="Where to begin; a random one otherwise.")
@click.option("--schedule", "file", type=FILE, help="Plays this one, and no other.")
@click.option("--sessions", type=click.IntRange(0), default=256, help="Sessions over sockets, on the fake provider.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/chaos"), help="Where a failing one is kept.")
def main(
    provider: str, rollouts: int, batch: int, seed: int | None, file: Path | None, sessions: int, out: Path
) -> None:
    """Plays rollouts under faults, and exits with 1 when an invariant is broken."""
    logging.disable(logging.ERROR)  # thousands of failures that are meant to happen
    limits = Limits() if provider == "fake" else Limits(ready=180, tool=60, hang=5, patience=10, starting=4, running=16)
    seed = secrets.randbelow(10**6) if seed is None else seed
    if file is not None:
        try:
            schedules = [Schedule.load(file)]
        except ValueError as exc:
            raise click.BadParameter(str(exc), param_hint="--schedule") from None
    else:
        numbers = range(-(-rollouts // batch))
        spread = 1.0 if provider == "fake" else 5.0
        schedules = [
            make(seed + number, min(batch, rollouts - number * batch), spread=spread,
                 closes=spread / 2 if number % 4 == 3 else None)
            for number in numbers
        ]  # fmt: skip
    for schedule in schedules:
        began = time.monotonic()
        aftermath, broken = asyncio.run(play(schedule, provider, limits))
        click.echo(f"seed {schedule.seed}: {_summary(aftermath)}, in {time.monotonic() - began:.1f} s")
        if broken:
            _report(schedule, broken, provider, limits, out)
            raise click.exceptions.Exit(1)
    if provider == "fake" and sessions and file is None:
        _serve(seed, sessions)


def _serve(seed: int, sessions: int) -> None:
    """Sessions that misbehave, then as many that don't: what their tool calls take."""
    from chaos import serve

    for kinds, what in ((serve.KINDS, "sessions, some of which misbehave"), (("plain",), "sessions side by side")):
        began = time.monotonic()
        served = asyncio.run(serve.run(seed, sessions, calls=3 if len(kinds) > 1 else 8, kinds=kinds))
        half, most, nearly = (1000 * served.quantile(part) for part in (0.5, 0.95, 0.99))
        click.echo(
            f"seed {seed}: {sessions} {what}: {served.scored} scored, in {time.monotonic() - began:.1f} s; a tool call"
            f" takes p50 {half:.0f} ms, p95 {most:.0f} ms, p99 {nearly:.0f} ms (n={len(served.latencies)})"
        )
        problems = list(served.problems)
        if len(kinds) == 1 and nearly > 10 * half:
            problems.append(f"a tool call's p99 is {nearly / half:.1f} times its p50, and 10 times is allowed")
        for line in problems:
            click.echo(f"  {line}", err=True)
        if problems:
            raise click.exceptions.Exit(1)


def _summary(aftermath: Aftermath) -> str:
    ends: Counter[str] = Counter()
    for outcome in aftermath.outcomes:
        ends[f"unscored in {outcome.error.phase}" if outcome.error else "crashed" if outcome.crash else "scored"] += 1
    told = ", ".join(f"{count} {name}" for name, count in sorted(ends.items()))
    return f"{len(aftermath.outcomes)} rollouts: {told}"


def _report(schedule: Schedule, broken: list[str], provider: str, limits: Limits, out: Path) -> None:
    for line in broken[:20]:
        click.echo(f"  {line}", err=True)
    out.mkdir(parents=True, exist_ok=True)
    kept = out / f"schedule-{schedule.seed}.json"
    schedule.save(kept)
    click.echo(f"kept as {kept}; again: make chaos SEED={schedule.seed}, or ARGS='--schedule {kept}'", err=True)
    if provider == "fake":
        small = asyncio.run(shrink(schedule, lambda tried: _fails(tried, provider, limits)))
        smallest = kept.with_suffix(".small.json")
        replace(small).save(smallest)
        click.echo(f"the smallest that fails has {len(small.plans)} rollouts: {smallest}", err=True)


async def _fails(schedule: Schedule, provider: str, limits: Limits) -> bool:
    return bool((await play(schedule, provider, limits))[1])


if __name__ == "__main__":
    main()

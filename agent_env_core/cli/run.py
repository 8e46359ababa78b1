"""``agent-env run``: a model plays the tasks of a bundle, and the scores are added up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agent_env_core.cli.progress import Progress
    from agent_env_core.evaluate.evaluation import Kept
    from agent_env_core.evaluate.session import Session, Settings
    from agent_env_core.evaluate.summary import Summary

MOST_LISTED = 10
MOST_KEPT = 16
"""Episodes that ``--keep`` leaves standing at most."""


@click.command()
@click.argument("bundle")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Play this task; may be given again.")
@click.option("--eval", "evals", multiple=True, metavar="NAME", help="Play the tasks of this eval; may be given again.")
@click.option("--model", metavar="NAME", help="The model, as its server calls it; `scripted` is the bundle's own demo.")
@click.option("--base-url", metavar="URL", help="Its OpenAI-compatible API.  [default: OPENAI_BASE_URL, else OpenAI's]")
@click.option("--api-key-env", default="OPENAI_API_KEY", metavar="NAME", help="The variable that holds the API key.")
@click.option("--judge-model", metavar="NAME", help="The model for verifiers that ask one.")
@click.option("--user-model", metavar="NAME", help="The model for prompts that simulate a user.")
@click.option(
    "--sandbox",
    metavar="NAME",
    help="Sandbox provider that envs are deployed with.  [default: docker; hello: process,docker]",
)
@click.option("--repeat", default=1, type=click.IntRange(1), help="Episodes of each task.")
@click.option("--concurrency", default=4, type=click.IntRange(1), help="Episodes at once.")
@click.option("--temperature", type=float, help="Sampling temperature of the model.")
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens that one answer may have.")
@click.option(
    "--max-turns", default=100, type=click.IntRange(1), help="Answers that one prompt may take, tools between."
)
@click.option("--end-turn", is_flag=True, help="Offer the tool end_turn, as in training.")
@click.option(
    "--seed", "seeds", multiple=True, metavar="KEY=VALUE", help="Replace <KEY> in the tasks; may be repeated."
)
@click.option(
    "--reward", metavar="NAME", help="The score that counts: a step id, or a combiner.  [default: their mean]"
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the results.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out; what failed is played again.")
@click.option("--keep", is_flag=True, help="Leave the sandboxes standing at the end, until Ctrl-C.")
@click.option("--dry-run", is_flag=True, help="Check tasks, model, sandboxes and images; play nothing.")
@click.option("--fail-under", type=float, metavar="SCORE", help="Exit with 1 if the mean score is lower.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def run(ctx: click.Context, /, *, dry_run: bool, fail_under: float | None, as_json: bool, **options: Any) -> None:
    """Have a model play the tasks of BUNDLE, a folder or an installed bundle, and add up the scores.

    Without --task and --eval the tasks of every eval are played, or all where there are no evals. `agent-env run hello`
    needs no model and no Docker. Exits with 1 if an episode failed, 130 after Ctrl-C.
    """
    from agent_env_core.cli.progress import Progress
    from agent_env_core.evaluate.session import Session

    settings = _settings(**options)
    progress = Progress(lambda: session.evaluation)
    try:
        session = Session(settings, say=progress.say)
    except ValueError as exc:
        raise click.UsageError(f"--reward: {exc}") from exc
    if settings.keep and len(session.plan.tasks) * settings.repeat > MOST_KEPT:
        raise click.UsageError(f"--keep leaves at most {MOST_KEPT} episodes standing: choose fewer tasks with --task")
    _announce(session, progress, dry_run=dry_run)
    if dry_run:
        ctx.exit(asyncio.run(_check(session, as_json=as_json)))
    ctx.exit(asyncio.run(_play(session, progress, fail_under, as_json=as_json)))


def _settings(
    *, model: str | None, base_url: str | None, api_key_env: str, judge_model: str | None, user_model: str | None,
    temperature: float | None, max_tokens: int | None, max_turns: int, seeds: Sequence[str], resume: bool,
    out: Path | None, tasks: Sequence[str], evals: Sequence[str], **others: Any,
) -> Settings:  # fmt: skip
    from dataclasses import replace

    from agent_env_core.evaluate.session import Settings
    from agent_env_core.models import ModelSettings

    if resume and out is None:
        raise click.UsageError("--resume needs --out, the folder of the run to go on with")
    found = {"model": model, "base_url": base_url, "judge_model": judge_model, "user_model": user_model}
    models = replace(
        ModelSettings.from_env(), api_key_env=api_key_env, **{key: value for key, value in found.items() if value}
    )
    params = {"temperature": temperature, "max_tokens": max_tokens}
    return Settings(
        tasks=tuple(tasks),
        evals=tuple(evals),
        models=models,
        params={key: value for key, value in params.items() if value is not None},
        max_answers=max_turns,
        seed=dict(_seed(seed) for seed in seeds),
        resume=resume,
        out=out,
        **others,
    )


def _seed(given: str) -> tuple[str, str]:
    key, sign, value = given.partition("=")
    if not sign or not key:
        raise click.UsageError(f"--seed {given!r} must be KEY=VALUE")
    return key, value


def _announce(session: Session, progress: Progress, *, dry_run: bool) -> None:
    """Says what is about to be run."""
    from agent_env_core.play.refusals import by_reason, few

    plan = session.plan
    total = len(plan.tasks) + len(plan.skipped)
    some = f"{len(plan.tasks):,} of {total:,} tasks" if plan.skipped else f"{total:,} task{'s' * (total != 1)}"
    times = f", {session.settings.repeat} episodes each" if session.settings.repeat > 1 else ""
    progress.say(f"{click.style('bundle', bold=True)}    {plan.bundle.name}: {some}{times}")
    progress.say(f"{click.style('model', bold=True)}     {session.model_title}")
    progress.say(f"{click.style('sandbox', bold=True)}   {session.sandbox}")
    if not dry_run:
        progress.say(f"{click.style('results', bold=True)}   {session.out}")
    names = {task.id: task.name for task in plan.tasks}
    for reason, tasks in by_reason((names[task_id], why) for task_id, why in plan.refused.items()).items():
        progress.say(f"can't be played ({few(tasks)}): {reason}")


async def _check(session: Session, *, as_json: bool) -> int:
    """Exit status of a dry run."""
    refused = await session.check()
    names = {task.id: task.name for task in session.plan.tasks}
    playable = [task.name for task in session.plan.tasks if task.id not in refused]
    if as_json:
        told = {names[task_id]: why for task_id, why in refused.items()}
        click.echo(json.dumps({"bundle": session.bundle.name, "tasks": playable, "refused": told}, indent=2))
    else:
        episodes = len(playable) * session.settings.repeat
        click.echo(f"everything is ready: {episodes:,} episode{'s' * (episodes != 1)} would be played")
        for name in playable[:MOST_LISTED]:
            click.echo(f"  {name}")
        if more := playable[MOST_LISTED:]:
            click.echo(f"  and {len(more):,} more")
        if refused:
            click.echo(f"{len(refused):,} of {len(names):,} tasks can't be played here")
    return 1 if refused else 0


async def _play(session: Session, progress: Progress, fail_under: float | None, *, as_json: bool) -> int:
    """Exit status of a run."""
    told = _Told(session, as_json=as_json)

    async def hold(kept: Sequence[Kept]) -> None:
        told.summary()
        for one in kept:
            progress.say(f"kept      {one.task}, env {one.env}: {one.url} (sandbox {one.sandbox})")
        progress.say("The sandboxes stand until Ctrl-C.")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        held.append(True)

    held: list[bool] = []
    playing = asyncio.create_task(session.run(progress.ended, hold))
    with _signals(playing, progress.say) as signalled, progress.shown():
        await asyncio.wait({playing})
    if playing.cancelled() or (signalled and not held):
        if session.summary is not None:
            told.summary()
        return 128 + (signalled[0] if signalled else signal.SIGINT)
    try:
        summary = playing.result()
    except BaseExceptionGroup as exc:
        raise _first(exc) from exc
    told.summary()
    return _status(summary, fail_under)


def _status(summary: Summary, fail_under: float | None) -> int:
    if summary.outcomes["failed"]:
        return 1
    if fail_under is not None and (summary.score is None or summary.score.mean < fail_under):
        found = "there is none" if summary.score is None else f"{summary.score.mean:.3f}"
        click.echo(f"the mean score is below --fail-under {fail_under:g}: {found}", err=True)
        return 1
    return 0


class _Told:
    """Prints the summary, once."""

    def __init__(self, session: Session, *, as_json: bool) -> None:
        self._session = session
        self._as_json = as_json
        self._done = False

    def summary(self) -> None:
        from agent_env_core.cli.progress import width
        from agent_env_core.cli.report import report

        summary = self._session.summary
        if self._done or summary is None:
            return
        self._done = True
        if self._as_json:
            head = {"bundle": self._session.bundle.name, "results": str(self._session.out)}
            click.echo(json.dumps(head | summary.to_json(), indent=2))
        else:
            click.echo()
            click.echo(report(summary, width()))


@contextlib.contextmanager
def _signals(playing: asyncio.Task[Any], say: Callable[[str], None]) -> Iterator[list[int]]:
    """Has SIGINT and SIGTERM cancel a task; a second one ends the process, and the reaper what is left."""
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(128 + number)
        say("stopping: tearing down (once more to leave that to the reaper)")
        playing.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, int(number))
    try:
        yield received
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that matters of a group."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    return inner

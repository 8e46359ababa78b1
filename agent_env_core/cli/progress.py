"""How an evaluation looks while it runs: a live table on a terminal, plain lines elsewhere. Both go to stderr."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agent_env_core.evaluate.evaluation import Evaluation, Running
    from agent_env_core.evaluate.record import Row

SIGNS = {"passed": ("✓", "green"), "below_one": ("·", None), "unscored": ("?", None), "failed": ("✗", "red"),
         "cancelled": ("-", "yellow")}  # fmt: skip
SHOWN = 8
"""Episodes under way that the live table shows."""
NARROW, WIDE = 60, 200


class Progress:
    """Tells how an evaluation goes.

    Args:
        evaluation: Gives the evaluation once there is one.
        live: Whether stderr is a terminal that can be redrawn.
    """

    def __init__(self, evaluation: Callable[[], Evaluation | None], *, live: bool | None = None) -> None:
        self._evaluation = evaluation
        self._live = sys.stderr.isatty() if live is None else live
        self._above: Callable[[str], None] | None = None  # prints above the live table

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While this is entered the live table is on the screen, and what is said goes above it."""
        if not self._live:
            yield
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(stderr=True)
        with Live(console=console, get_renderable=self._table, refresh_per_second=4, transient=True):
            self._above = lambda line: console.print(Text.from_ansi(line), soft_wrap=True)
            try:
                yield
            finally:
                self._above = None

    def say(self, line: str) -> None:
        """A line about what is being done."""
        if self._above is not None:
            self._above(line)  # click would write past the table
        else:
            click.echo(line, err=True)

    def ended(self, row: Row) -> None:
        """A line about an episode that ended. Tasks that can't be played were told of before."""
        if not row.episode_id:
            return
        evaluation = self._evaluation()
        done = f"{len(evaluation.episodes)}/{evaluation.planned}" if evaluation else ""
        self.say(line_of(row, done, width()))

    def _table(self) -> RenderableType:
        from rich.table import Table

        evaluation = self._evaluation()
        table = Table.grid(padding=(0, 2))
        if evaluation is None:
            return table
        table.add_row(f"{len(evaluation.episodes)} of {evaluation.planned} episodes", "", "")
        for running in evaluation.running[:SHOWN]:
            table.add_row(f"  {title(running.task, running.repeat)}", doing(running), duration(_age(running)))
        if (more := len(evaluation.running) - SHOWN) > 0:
            table.add_row(f"  and {more} more", "", "")
        return table


def line_of(row: Row, done: str, columns: int) -> str:
    """An ended episode in one line of at most so many columns; a longer reason goes on in lines of its own."""
    sign, colour = SIGNS[row.outcome]
    if row.reward is not None and row.outcome in ("passed", "below_one"):
        what = f"{row.reward:.3f}"
    else:
        what = row.outcome.replace("_", " ")
    calls = f"{row.tool_calls} {'call' if row.tool_calls == 1 else 'calls'}"
    tail = f"{what:>9}  {calls:>9}  {duration(row.seconds):>7}  {done}"
    room = max(12, columns - len(tail) - 5)
    name = fit(title(row.task, row.repeat), room)
    text = f"{click.style(sign, fg=colour)} {name:<{min(room, 40)}}  {tail}"
    if row.error:
        reason = f"{row.error['phase']}: {row.error['reason']}"
        text += "\n    " + wrapped(reason, columns, 4)
    return text


def wrapped(text: str, columns: int, indent: int) -> str:
    """A text in lines of at most so many columns, the first one without its indent. Lines of its own stay lines."""
    space = " " * indent
    lines = [click.wrap_text(line.strip(), columns - indent) for line in text.splitlines()]
    return f"\n{space}".join(part for line in lines for part in line.splitlines())


def title(task: str, repeat: int) -> str:
    """An episode's name: that of its task, and which repeat it is after the first."""
    return f"{task} #{repeat + 1}" if repeat else task


def doing(running: Running) -> str:
    """What an episode is busy with."""
    turns = running.player.turns
    if not turns:
        return "deploying"
    turn = turns[-1]
    if turn.reply is not None and turn.number >= turn.of:
        return "scoring"
    calls = sum(len(turn.calls) for turn in turns)
    return f"turn {turn.number}/{turn.of}, {calls} {'call' if calls == 1 else 'calls'}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them: ``4.2 s``, ``3 m 05 s``, ``2 h 10 m``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} m {int(seconds) % 60:02} s"
    return f"{int(seconds) // 3600} h {int(seconds) // 60 % 60:02} m"


def fit(text: str, room: int) -> str:
    """A text cut to so many columns."""
    return text if len(text) <= room else text[: room - 1] + "…"


def width() -> int:
    """Columns of the terminal; a pipe has as many as it needs."""
    if not sys.stderr.isatty() and not sys.stdout.isatty():
        return WIDE
    return max(NARROW, shutil.get_terminal_size().columns)


def _age(running: Running) -> float:
    return time.monotonic() - running.began

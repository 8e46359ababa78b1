"""Progress bars for what takes long, and a trainer's callback that moves one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback


class Bar:
    """One bar: ``step`` moves it, with a word about how it goes."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self._progress, self._title, self._total, self._done = progress, title, total, 0
        self._task = progress.add_task(title, total=total, note="")

    def step(self, note: str = "") -> None:
        """Moves the bar on by one; where there is no terminal, a line tells of each tenth."""
        self._done += 1
        self._progress.update(self._task, advance=1, note=note)
        tenths = 10 * self._done // self._total
        if not self._progress.console.is_terminal and tenths > 10 * (self._done - 1) // self._total and tenths < 10:
            self._progress.console.print(f"{self._title}: {self._done} of {self._total} {note}".rstrip())


@contextmanager
def bar(console: Console, title: str, total: int) -> Iterator[Bar]:
    """A bar on the terminal; where the output goes elsewhere, lines on the way and the full bar at the end."""
    if not console.is_terminal:
        console.print(f"{title}: {total} to go")
    columns = (
        TextColumn("{task.description:<34}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, title, total)


class Steps(TrainerCallback):
    """Moves a bar at each step of a trainer, and shows the last value it logged under ``key``."""

    def __init__(self, bar: Bar, key: str) -> None:
        self._bar, self._key = bar, key

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **rest: Any) -> None:
        """Called once a step, with ``logging_steps=1``."""
        if logs and self._key in logs:
            self._bar.step(f"{self._key} {float(logs[self._key]):.3f}")

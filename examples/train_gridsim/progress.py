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

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self._task = progress, task

    def step(self, note: str = "") -> None:
        """Moves the bar on by one."""
        self._progress.update(self._task, advance=1, note=note)


@contextmanager
def bar(console: Console, title: str, total: int) -> Iterator[Bar]:
    """A bar on the terminal; where the output goes elsewhere, a line at the start and one at the end."""
    if not console.is_terminal:
        console.print(f"{title}: {total} to go")
    columns = (
        TextColumn("{task.description:<34}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield Bar(progress, progress.add_task(title, total=total, note=""))


class Steps(TrainerCallback):
    """Moves a bar at each step of a trainer, and shows the last value it logged under ``key``."""

    def __init__(self, bar: Bar, key: str) -> None:
        self._bar, self._key = bar, key

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **rest: Any) -> None:
        """Called once a step, with ``logging_steps=1``."""
        if logs and self._key in logs:
            self._bar.step(f"{self._key} {float(logs[self._key]):.3f}")

"""Progress of what takes long: a bar on a terminal, lines elsewhere; and a trainer's callback that moves it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

LINES = 10
"""Where there is no terminal, a stage prints about as many lines."""


class Bar(Protocol):
    """Something that shows how far a stage has come."""

    def step(self, note: str = "") -> None:
        """Moves it on by one, with a word about how it goes."""


class _Drawn:
    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self._progress, self._task = progress, progress.add_task(title, total=total, note="")

    def step(self, note: str = "") -> None:
        self._progress.update(self._task, advance=1, note=note)


class _Printed:
    def __init__(self, console: Console, title: str, total: int) -> None:
        self._console, self._title, self._total, self._done = console, title, total, 0

    def step(self, note: str = "") -> None:
        before, self._done = self._done, self._done + 1
        if before * LINES // self._total != self._done * LINES // self._total:
            self._console.print(f"{self._title}: {self._done} of {self._total} {note}".rstrip())


@contextmanager
def bar(console: Console, title: str, total: int) -> Iterator[Bar]:
    """Shows the progress of a stage of ``total`` steps for as long as it is open."""
    if not console.is_terminal:
        yield _Printed(console, title, total)
        return
    columns = (
        TextColumn("{task.description:<28}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(elapsed_when_finished=False), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield _Drawn(progress, title, total)


class Steps(TrainerCallback):
    """Moves a bar at each step of a trainer, and shows the last value it logged under ``key``."""

    def __init__(self, bar: Bar, key: str) -> None:
        self._bar, self._key = bar, key

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **rest: Any) -> None:
        """Called once a step, with ``logging_steps=1``."""
        if logs and self._key in logs:
            self._bar.step(f"{self._key} {float(logs[self._key]):.3f}")

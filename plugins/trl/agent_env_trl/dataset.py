"""Task rows to the dataset TRL trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset


def task_dataset(split: str, rows: Iterable[Mapping[str, Any]], *, environments: bool) -> Dataset:
    """A row for each task: its prompt as chat messages, and what ``reset`` needs to play it.

    Args:
        split: The split the rows are of.
        rows: The server's task rows, in order.
        environments: Whether to name each row's toolset in a column ``environment``, by which TRL picks its class.

    Returns:
        Columns ``prompt``, ``split``, ``index``, ``task_id``, and ``environment`` where asked for.
    """
    from datasets import Dataset

    rows = list(rows)
    columns: dict[str, list[Any]] = {
        "prompt": [_messages(row) for row in rows],
        "split": [split] * len(rows),
        "index": [int(row["index"]) for row in rows],
        "task_id": [str(row["id"]) for row in rows],
    }
    if environments:
        columns["environment"] = [str(row["toolset"]) for row in rows]
    return Dataset.from_dict(columns)


def check_rows(rows: Iterable[Mapping[str, Any]], tasks: Callable[[str], Dataset]) -> None:
    """Checks that rows can be played as they are.

    Args:
        rows: Rows of somebody's own dataset.
        tasks: The server's rows of a split.

    Raises:
        ValueError: A row can't be played; the message has its number, and what it must say.
    """
    for number, row in enumerate(rows):
        where = f"row {number} of the dataset"
        if row.get("split") is None or row.get("index") is None:
            raise ValueError(f"{where} has no split or no index, which say what to play: keep those of env.dataset")
        split, index = str(row["split"]), int(row["index"])
        known = tasks(split)
        if not 0 <= index < len(known):
            raise ValueError(f"{where} has the index {index}, and the split {split!r} has {len(known)} tasks")
        task = known[index]
        if row.get("task_id") not in (None, task["task_id"]):
            raise ValueError(f"{where} is of the task {row['task_id']!r}, and the server has {task['task_id']!r} there")
        if task.get("environment", row.get("environment")) != row.get("environment"):
            raise ValueError(
                f"{where} names the environment {row.get('environment')!r}, and its task is played in"
                f" {task['environment']!r}; {split!r} has: {', '.join(sorted(set(known['environment'])))}"
            )


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    system = row.get("system_prompt")
    head = [{"role": "system", "content": str(system)}] if system else []
    return [*head, {"role": "user", "content": str(row.get("prompt") or "")}]

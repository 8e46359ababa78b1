"""Task rows to the dataset TRL trains on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def _messages(row: Mapping[str, Any]) -> list[dict[str, str]]:
    system = row.get("system_prompt")
    head = [{"role": "system", "content": str(system)}] if system else []
    return [*head, {"role": "user", "content": str(row.get("prompt") or "")}]

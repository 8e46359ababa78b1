"""A bundle of several rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

ROWS = 5


@pytest.fixture(scope="session")
def rows(counter_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counter bundle with some copies of one task, so that the order of rows is something to look at."""
    copy = tmp_path_factory.mktemp("bundles") / "rows-v1"
    shutil.copytree(counter_bundle, copy)
    task = json.loads((copy / "tasks" / "one-turn.json").read_text("utf-8"))
    few = {"id": "few", "type": "modify_env_tool_access", "env_id": "counter", "action": "disable", "role": "*"}
    task.insert(2, {**few, "tools": ["peek", "whoami", "write", "read", "big", "hang", "crash"]})
    shutil.rmtree(copy / "evals")
    shutil.rmtree(copy / "tasks")
    (copy / "tasks").mkdir()
    for index in range(ROWS):
        (copy / "tasks" / f"count-{index}.json").write_text(json.dumps(task), "utf-8")
    return copy

"""What the tests of several plugins use."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

OTHER_TOOLSETS = ("tool-access", "role")


@pytest.fixture(scope="session")
def one_toolset(counter_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counter bundle without the tasks that offer other tools; it's called ``counter-v1``."""
    copy = tmp_path_factory.mktemp("bundles") / "counter-v1"
    shutil.copytree(counter_bundle, copy)
    for task in OTHER_TOOLSETS:
        (copy / "tasks" / f"{task}.json").unlink()
    (copy / "evals" / "eval.toml").write_text('tasks = ["two-turns"]\n', encoding="utf-8")
    return copy

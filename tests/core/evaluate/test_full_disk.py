"""Results on a disk that is full: an error with its fix, and never half of anything."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.evaluate import results as module
from agent_env_core.evaluate.record import Row
from agent_env_core.evaluate.results import EPISODES, Results, ResultsError


def row(task: str) -> Row:
    return Row(task, task, "digest", 0, "failed", started_at="2026-01-01T00:00:00+00:00")


def test_a_row_that_does_not_fit_leaves_no_half_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:-10])

    with Results(tmp_path / "out", {}) as results:
        results.add(row("a"))
        with monkeypatch.context() as full:
            full.setattr(module.os, "write", write)
            with pytest.raises(ResultsError, match=r"episodes\.jsonl: No space left on device; free some space there"):
                results.add(row("b"))
        results.add(row("c"))
    lines = (tmp_path / "out" / EPISODES).read_text().splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == ["a", "c"]


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_text(path: Path, *_: Any, **__: Any) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(ResultsError, match=r"run\.json: No space left on device; free some space there"):
        Results(tmp_path / "out", {})
    assert not (tmp_path / "out").exists()

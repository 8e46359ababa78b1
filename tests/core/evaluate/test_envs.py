"""Evaluations with real envs: what a retry makes anew, and tasks that nobody is asked in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.evaluate.record import Row
from agent_env_core.evaluate.session import OURS, Session, Settings
from agent_env_core.models import ModelSettings

pytestmark = pytest.mark.usefixtures("no_processes_left")


async def played(bundle: Path, out: Path, task: str, url: str = "http://127.0.0.1:1") -> Row:
    rows: list[Row] = []
    models = ModelSettings(base_url=url, model="scripted" if url.endswith(":1") else "m")
    await Session(Settings(str(bundle), tasks=(task,), models=models, sandbox="process", out=out)).run(rows.append)
    return rows[0]


async def test_an_env_that_broke_is_deployed_anew(
    counter_bundle: Path, tmp_path: Path, scripted_model: Any, calling: Callable[..., Any]
):
    bundle = tmp_path / "counter"
    shutil.copytree(counter_bundle, bundle)
    steps = json.loads((bundle / "tasks" / "one-turn-far.json").read_text())
    steps[3]["retry_config"] = {"retry_from_step_id": "env", "max_retries": 1}
    (bundle / "tasks" / "again.json").write_text(json.dumps(steps))
    scripted_model.says(calling(("add", {"amount": 1}), ("crash", {})), calling(("add", {"amount": 10})), "done")
    row = await played(bundle, tmp_path / "out", "again", scripted_model.url)
    assert (row.outcome, row.scores) == ("passed", {"grade": 1.0})  # 10 + 10: nothing is left of the first try
    assert [turn.error.partition(":")[0] for turn in row.turns] == ["tool", ""]
    assert [failed["is_retried"] for failed in row.failed_steps] == [True]


async def test_a_task_that_asks_nobody_runs_and_scores(tmp_path: Path):
    bundle = tmp_path / "hello"
    shutil.copytree(OURS / "hello", bundle)
    steps = json.loads((bundle / "tasks" / "open-the-door.json").read_text())
    (bundle / "tasks" / "nobody.json").write_text(json.dumps([steps[0], steps[1], steps[4]]))
    demo = json.loads((bundle / "demo.json").read_text())
    (bundle / "demo.json").write_text(json.dumps({**demo, "nobody": []}))
    row = await played(bundle, tmp_path / "out", "nobody")
    assert (row.outcome, row.scores, row.turns) == ("below_one", {"grade": 0.0}, [])

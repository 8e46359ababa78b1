"""``agent-env validate``: a sound bundle, and every problem of an unsound one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from click.testing import CliRunner, Result

from agent_env_core.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["validate", *arguments])


def test_a_sound_bundle(counter_bundle: Path) -> None:
    result = run(str(counter_bundle))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("counter: ")
    assert "no problems" in result.stdout


def test_every_problem_with_its_file(counter_bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(counter_bundle, broken)
    (broken / "tasks" / "aaa.json").write_text("{")
    (broken / "tasks" / "bbb.json").write_text('{"steps": []}')
    result = run(str(broken))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "tasks/aaa.json" in result.stderr
    assert "tasks/bbb.json" in result.stderr

    report = json.loads(run(str(broken), "--json").stdout)
    assert {"tasks/aaa.json", "tasks/bbb.json"} <= {
        problem["place"].partition(":")[0] for problem in report["problems"]
    }


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "nothing" in result.stderr

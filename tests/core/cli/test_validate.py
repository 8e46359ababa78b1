"""``agent-env validate``: a sound bundle, and every problem of an unsound one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent_env_core.bundle import installed_bundles
from agent_env_core.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["validate", *arguments])


def test_a_sound_bundle(counter_bundle: Path) -> None:
    result = run(str(counter_bundle))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("counter: ")
    assert "no problems" in result.stdout


def test_a_bundle_without_tasks_says_where_they_come_from(counter_bundle: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh"
    shutil.copytree(counter_bundle, fresh)
    shutil.rmtree(fresh / "tasks")
    shutil.rmtree(fresh / "evals", ignore_errors=True)
    assert run(str(fresh)).stdout.splitlines()[1:] == ["tasks: there is no task (add one)"]
    (fresh / "generator").mkdir()
    (fresh / "generator" / "__main__.py").touch()
    hint = f"its generator makes them: python {fresh / 'generator'}"
    assert run(str(fresh)).stdout.splitlines()[1:] == [f"tasks: there is no task ({hint})"]
    for command in (["serve", str(fresh), "--port", "0"], ["run", str(fresh), "--model", "m"]):
        assert hint in CliRunner().invoke(main, command).output


def test_every_problem_with_its_file(counter_bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(counter_bundle, broken)
    (broken / "tasks" / "aaa.json").write_text("{")
    (broken / "tasks" / "bbb.json").write_text('[{"id": "greet", "type": "prompt_agnet"}]')
    (broken / "tasks" / "ccc.json").write_text('[{"id": "peers", "type": "peer_agents"}]')
    (broken / "tasks" / "ddd.json").write_text("[]")
    result = run(str(broken))
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    told = result.stderr.splitlines()
    assert told[0].startswith("tasks/aaa.json: is not JSON: line 1")
    assert told[1:] == [
        "tasks/bbb.json:greet: there is no step type 'prompt_agnet' (did you mean 'prompt_agent'?)",
        "tasks/ccc.json:peers: the step type 'peer_agents' is part of the format, and not supported by this version",
    ]
    assert "3 tasks left out, 3 problems" in result.stdout
    assert "not for training: ddd: prompts no agent, so there is nothing to play" in result.stdout

    report = json.loads(run(str(broken), "--json").stdout)
    assert [(row["file"], row["step"]) for row in report["problems"]] == [
        ("tasks/aaa.json", None),
        ("tasks/bbb.json", "greet"),
        ("tasks/ccc.json", "peers"),
    ]
    assert report["problems"][1]["fix"] == "did you mean 'prompt_agent'?"
    assert report["left_out"] == ["aaa", "bbb", "ccc"]
    assert list(report["not_playable"]) == ["ddd"]
    assert report["splits"]["all"] == json.loads(run(str(counter_bundle), "--json").stdout)["splits"]["all"] + 1


def test_a_field_that_is_ignored_and_looks_misspelt(counter_bundle: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(counter_bundle, odd)
    wait = {"id": "env", "type": "deploy_env", "env_id": "counter", "depend_on": [], "note": "x", "ttl_second": 9}
    (odd / "tasks" / "aaa.json").write_text(json.dumps([wait, {**wait, "id": "more", "depends_on": []}]))
    result = run(str(odd))
    assert result.exit_code == 0, result.output
    assert "ignored: tasks/aaa.json:env: the field 'depend_on' is ignored (did you mean 'depends_on'?)" in result.stdout
    report = json.loads(run(str(odd), "--json").stdout)
    assert [(row["step"], row["message"].split("'")[1]) for row in report["ignored_fields"]] == [
        ("env", "depend_on"),
        ("env", "ttl_second"),
        ("more", "ttl_second"),
    ]


def test_problems_that_stop_the_whole_bundle(counter_bundle: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(counter_bundle, broken)
    (broken / "bundle.toml").write_text("")
    (broken / "tasks" / "aaa.json").write_text("{")
    result = run(str(broken))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "bundle.toml: is reserved" in result.stderr
    report = json.loads(run(str(broken), "--json").stdout)
    assert [row["file"] for row in report["problems"]] == ["bundle.toml", "tasks/aaa.json"]


def test_an_installed_bundle_by_its_name(counter_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(counter_bundle, tmp_path / "acme_bundles" / "tallying")
    info = tmp_path / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[agent_env.bundles]\ntallying = acme_bundles\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed_bundles.cache_clear()
    try:
        result = run("tallying")
        assert result.stdout.startswith("tallying: 1 env"), result.output
        assert "did you mean 'tallying'?" in run("talying").stderr
    finally:
        installed_bundles.cache_clear()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert result.exit_code == 1
    assert "nothing" in result.stderr

"""A retry in an evaluation finds nothing of the try before, whatever kinds of steps are run again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.evaluate.record import Row
from agent_env_core.evaluate.session import Session, Settings
from agent_env_core.models import ModelSettings
from agent_env_core.play.episode import Episode

pytestmark = pytest.mark.usefixtures("no_processes_left")

BUNDLES = Path(__file__).resolve().parents[2] / "bundles"
NOTICE = {"type": "tool", "tool": "north_notice", "args": {"text": "seen"}}
TRIGGER = {
    "id": "echo",
    "when": {"type": "action", "tool": "north_put"},
    "barrier": {"at": "provoking_call"},
    "actions": [NOTICE],
}
WANT = {"entries": {"opened": "by seed"}, "want": {"opened": "by seed", "a": "1", "notices": [["seen", ""]]}}
ADDS = "cd /app/repo && python -c 'from adder import add; assert add(2, 3) == 5'"
STEPS: list[dict[str, Any]] = [
    {"id": "env", "type": "deploy_env", "env_id": "north"},
    {"id": "vm", "type": "deploy_sandbox", "sandbox_name": "vm", "sandbox_mode": "vm"},
    {"id": "box", "type": "run_docker_container", "sandbox_name": "vm", "docker_context_artifact_id": "bench"},
    {"id": "helper", "type": "install_agent", "agent_name": "helper", "sandbox_name": "vm"}
    | {"container_name": "task-container", "workspace_dir": "/app"},
    {"id": "agent", "type": "deploy_agent", "env_ids": ["north"], "sandbox_name": "vm", "system_prompt": "First."},
    {"id": "seed", "type": "load_artifact", "env_id": "north", "artifact_id": "opening"},
    {"id": "want", "type": "apply_server_config", "env_id": "north"}
    | {"directives": [{"service": "north", "uri": "urn:ledger:set/v1", "args": WANT}]},
    {"id": "watch", "type": "register_env_triggers", "env_id": "north", "triggers": [TRIGGER]},
    {"id": "repo", "type": "load_artifact", "sandbox_name": "vm", "artifact_id": "broken-repo"}
    | {"destination_path": "/app/repo"},
    {"id": "learn", "type": "add_skills", "skills": [{"skill_artifact_id": "naming"}]},
    {"id": "ask", "type": "prompt_agent", "prompt": "Hello?"},
    {"id": "keep", "type": "snapshot_env", "env_id": "north", "snapshot_id": "kept"},
    {"id": "play", "type": "prompt_agent", "prompt_id": "play", "prompt": "Fix it.", "system_prompt": "Then."},
    {"id": "hide", "type": "modify_env_tool_access", "env_id": "north", "action": "disable", "role": "default"}
    | {"tools": ["north_put"]},
    {"id": "tests", "type": "run_container_unit_tests_verifier", "sandbox_name": "vm", "command": ADDS, "fresh": True}
    | {"fresh_paths": ["/app/repo"]},
    {"id": "grade", "type": "env_outcome_verifier", "env_id": "north", "file_artifact_id": "ledger-verifier"}
    | {"verifier_id": "grade", "score_aggregator": "weighted_average"},
]


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[[str], Path]:
    """The task above in a bundle of its own, whose tests go back to a step when they fail."""

    def make(retry_from: str) -> Path:
        root = tmp_path / "mixed"
        shutil.copytree(BUNDLES / "workshop", root, ignore=shutil.ignore_patterns("tasks", "plays.toml"))
        for part in ("envs/north", "artifacts/ledger-image", "artifacts/opening", "artifacts/ledger-verifier"):
            shutil.copytree(BUNDLES / "ledger" / part, root / part)
        retry = {"tests": {"retry_config": {"retry_from_step_id": retry_from, "max_retries": 1}}}
        (root / "tasks").mkdir()
        (root / "tasks" / "all.json").write_text(json.dumps([step | retry.get(step["id"], {}) for step in STEPS]))
        return root

    return make


@pytest.mark.parametrize("retry_from", ["env", "seed"])
async def test_every_kind_of_step_is_undone(
    bundle: Callable[[str], Path],
    retry_from: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scripted_model: Any,
    calling: Callable[..., Any],
):
    started: list[Episode] = []
    start = Episode.start
    monkeypatch.setattr(Episode, "start", lambda episode: (started.append(episode), start(episode))[1])
    put = ("north_put", {"key": "a", "value": "1"})
    fix = ("bash", {"command": "sed -i s/-/+/ /app/repo/adder.py"})
    scripted_model.says("hi", calling(put, ("bash", {"command": "true"})), "no", "hi", calling(put, fix), "fixed")
    models = ModelSettings(base_url=scripted_model.url, model="m")
    settings = Settings(str(bundle(retry_from)), models=models, sandbox="process", out=tmp_path / "out")
    rows: list[Row] = []
    await Session(settings).run(rows.append)
    (row,) = rows
    assert (row.outcome, row.scores) == ("passed", {"tests": 1.0, "grade": 1.0}), row.error
    assert [(failed["step_id"], failed["is_retried"]) for failed in row.failed_steps] == [("tests", True)]
    assert [turn.system_prompt for turn in row.turns] == ["First.", "Then.", "First.", "Then."]
    assert "north_put" in row.turns[2].tools, "the access rules are as they were"
    run = started[0].run
    assert [firing.trigger_id for firing in run.firings] == ["echo"]
    assert [skill.name for skill in run.agents["default-agent"].skills] == ["naming"]
    assert [response.step_id for response in run.responses] == ["ask", "play"]
    assert list(run.snapshots) == [f"{row.task_id}/kept"]
    for notes in ("env_snapshotted_universes", "env_trigger_registrations", "deployed_docker_containers"):
        assert len(run.metadata[notes]) == 1, notes
    loads = [load.step_id for placed in run.sandboxes.values() for load in placed.loads]
    assert loads == ["repo", "learn"]

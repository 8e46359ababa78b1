"""A plugin that isn't ours: its own distribution, installed as a user would, serves an episode by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

SAMPLE = Path(__file__).resolve().parents[1] / "sample_plugin"
NAMES = {
    "audited": "sandbox provider",
    "within": "reward combiner",
    "keeper_load": "step type",
    "stroll": "trainer adapter",
}

PLAY = """
import json, sys
from agent_env.training.trl import AgentEnv

with AgentEnv.local(sys.argv[1], split="train", sandbox="audited", reward="within:score=0.4..1") as env:
    environment = env.factory()
    environment.reset(**env.dataset[0])
    answers = [json.loads(environment.guess(number=number))["answer"] for number in (5, 7)]
    print(json.dumps([answers, environment.get_reward()]))
"""


@pytest.fixture
def acme_bundle(tutorial_bundle: Path) -> Path:
    """The tutorial's bundle, whose tasks load the env with the plugin's step type."""
    for path, secret in (("easy", 7), ("hard", 612)):
        task = tutorial_bundle / "tasks" / f"{path}.json"
        steps = json.loads(task.read_text(encoding="utf-8"))
        steps[1] = {"id": "load", "type": "keeper_load", "env_id": "keeper", "secret": secret}
        task.write_text(json.dumps(steps), encoding="utf-8")
    return tutorial_bundle


@pytest.fixture
def acme_environment(environment: Any, sources: dict[str, Any]) -> Any:
    """An environment with everything of ours, and the sample plugin."""
    environment.install(*sources)
    environment.install(SAMPLE)
    return environment


@pytest.mark.slow
@pytest.mark.usefixtures("no_processes_left")
def test_a_third_partys_plugin_serves_an_episode_by_name(
    acme_environment: Any, acme_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = json.loads(acme_environment.program("agent-env", "plugins", "--json"))["plugins"]
    ours = {plugin["name"]: plugin["provides"] for plugin in listed if plugin["distribution"] == "acme-agent-env"}
    assert ours == {name: [kind] for name, kind in NAMES.items()}

    record = tmp_path / "audit.jsonl"
    monkeypatch.setenv("ACME_AUDIT_FILE", str(record))
    answers, reward = json.loads(acme_environment.run("-c", PLAY, str(acme_bundle)).splitlines()[-1])
    assert answers == ["higher", "correct"]
    assert reward == pytest.approx((0.9 - 0.4) / 0.6)

    entries = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    created = {entry["sandbox"] for entry in entries if entry["what"] == "created"}
    assert created
    assert created == {entry["sandbox"] for entry in entries if entry["what"] == "killed"}


@pytest.mark.long  # a venv of its own imports TRL; every part of it is tested in this one
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_processes_left")
def test_a_third_partys_trainer_is_checked_and_run_by_name(
    acme_environment: Any, acme_bundle: Path, tiny_model: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "train.yaml", tmp_path / "out"
    arguments = {"output_dir": str(out), "rollouts": 3}
    document = {"bundle": str(acme_bundle), "split": "train", "sandbox": "process", "model": str(tiny_model)}
    file.write_text(yaml.safe_dump({**document, "trainer": "stroll", "arguments": arguments}), encoding="utf-8")
    acme_environment.program("agent-env", "train", str(file))
    rewards = json.loads((out / "rewards.json").read_text("utf-8"))
    assert len(rewards) == 3
    assert rewards[0] == 1.0
    with pytest.raises(AssertionError, match="number is 0, and the game's begin with 1"):
        acme_environment.program("agent-env", "train", str(file), "--set", "arguments.number=0")


@pytest.mark.slow
def test_without_it_the_bundle_and_the_names_are_refused_with_what_is_known(
    environment: Any, sources: dict[str, Any], acme_bundle: Path
) -> None:
    environment.install(*sources)
    script = """
import sys
from agent_env_core.plugins import plugins
from agent_env_core.errors import PluginError
for kind, name in (("sandbox provider", "audited"), ("reward combiner", "within")):
    try:
        plugins().named(kind, name)
    except PluginError as exc:
        print(exc)
"""
    provider, combiner = environment.run("-c", script, str(acme_bundle)).splitlines()
    assert provider.startswith("there is no sandbox provider 'audited'; known: docker, ")
    assert combiner == "there is no reward combiner 'within'; known: mean, min, weighted"
    with pytest.raises(AssertionError, match="keeper_load"):
        environment.program("agent-env", "validate", str(acme_bundle))

"""The bundle in ``docs/writing-a-bundle.md`` is sound, and plays as the page says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env_core.cli.main import main


def test_the_bundle_is_sound(tutorial_bundle: Path) -> None:
    result = CliRunner().invoke(main, ["validate", str(tutorial_bundle)])
    assert result.exit_code == 0, result.output
    assert "1 env, 2 tasks (splits: all 2, train 2)" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", ["process", pytest.param("docker", marks=pytest.mark.docker)])
def test_the_bundle_plays_as_the_page_says(tutorial_bundle: Path, sandbox: str) -> None:
    from agent_env.training.trl import AgentEnv

    with AgentEnv.local(tutorial_bundle, split="train", sandbox=sandbox) as env:
        environment = env.factory()
        environment.reset(**env.dataset[0])
        assert json.loads(environment.guess(number=5)) == {"answer": "higher", "guesses": 1}
        assert json.loads(environment.guess(number=7)) == {"answer": "correct", "guesses": 2}
        assert environment.get_reward() == pytest.approx(0.9)

"""The bundle in ``docs/writing-a-bundle.md`` is sound, and plays as the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env_core.bundle import load_bundle
from agent_env_core.cli.main import main
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.plugins import plugins
from agent_env_core.steps.base import declaration


def test_the_bundle_is_sound(tutorial_bundle: Path) -> None:
    result = CliRunner().invoke(main, ["validate", str(tutorial_bundle)])
    assert result.exit_code == 0, result.output
    assert "1 env, 3 tasks (splits: all 3, train 2), no problems" in result.stdout


def test_the_task_of_two_rounds_has_two_turns_and_one_score(tutorial_bundle: Path) -> None:
    *_, task = load_bundle(tutorial_bundle, declaration).tasks
    spec = EpisodeSpec.from_task(task)
    assert [prompt.step_id for prompt in spec.prompts] == ["play-1", "play-2"]
    assert {prompt.system_prompt for prompt in spec.prompts} == {
        "You play a guessing game. Call end_turn when you have found the number."
    }
    assert spec.score_ids == ("score",)


def test_the_steps_that_the_page_tells_of_are_there(tutorial_bundle: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "writing-a-bundle.md"
    told = page.read_text(encoding="utf-8").partition("| To | Write |")[2].partition("\n\n")[0]
    known = plugins().known("step type")
    named = set(re.findall(r"`([a-z_]+)`", told)) - {"depends_on", "environment"}
    assert named
    assert named <= set(known)


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

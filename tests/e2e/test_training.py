"""Real training, from one end to the other: TRL's trainers on GridSim, served by ``AgentEnv.local``."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest
from agent_env.training.trl import AgentEnv
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.mark.usefixtures("one_thread", "no_processes_left")
def test_grpo_raises_the_reward(gridsim_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from examples.train_gridsim import episodes, gridsim, grpo, model, sft
    from examples.train_gridsim.settings import Settings

    settings = Settings(sandbox="process", out=tmp_path, sft_steps=60, grpo_steps=8, passes=4, rollouts=16)
    console = Console(quiet=True)
    caplog.set_level(logging.WARNING, "agent_env.training.trl")
    with AgentEnv.local(gridsim_bundle, split="train", sandbox="process", max_concurrent_envs=16) as env:
        factory = env.factory
        assert isinstance(factory, type)
        tokenizer = model.gridsim_tokenizer(factory, gridsim.max_step(), gridsim.report([0.0] * 24, [0] * 24))
        policy = sft.train(model.build_model(tokenizer), tokenizer, sft.rows(), settings, console)
        two_days = grpo.in_price_code(env.dataset.select([100, 1100]))
        watch = episodes.Watch(factory)
        trainer = grpo.make_trainer(policy, tokenizer, two_days, watch.factory, settings)
        steps, unscored = grpo.train(trainer, watch, console)
    assert len(steps) == settings.grpo_steps
    rewards = [step["rewards/gridsim-v1/mean"] for step in steps]
    assert unscored == 0
    assert [record.message for record in caplog.records if record.name == "agent_env.training.trl"] == []
    assert mean(rewards[-3:]) > mean(rewards[:3]) + 0.05, rewards
    assert all(step["tools/call_frequency"] > 0.9 for step in steps)
    assert all(step["tools/failure_frequency"] == 0 for step in steps)


def test_the_demo_runs_and_says_when_the_model_is_not_good_enough(gridsim_bundle: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.train_gridsim", "--sandbox", "process", "--out", str(tmp_path)]
    ran = subprocess.run(
        [*command, "--sft-steps", "2", "--grpo-steps", "1", "--eval-days", "3"],
        cwd=ROOT, capture_output=True, text=True, timeout=350, check=False, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    assert "not as it should be: after GRPO isn't clearly better than after SFT" in ran.stdout
    assert "episodes ended unscored" not in ran.stdout
    results = json.loads((tmp_path / "results.json").read_text("utf-8"))
    trained = ["untrained", "after SFT", "after GRPO", "after GRPO, prices shuffled"]
    assert list(results["lines"]) == [*trained, "idle", "best constant", "greedy", "optimum"]
    assert results["unscored"] == 0
    assert (results["lines"]["idle"]["reward"], results["lines"]["optimum"]["reward"]) == (pytest.approx(0.2), 1.0)
    assert (tmp_path / "reward_curve.png").stat().st_size > 5_000

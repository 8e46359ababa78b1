"""GridSim on "E2B", end to end: the local server's process, the real SDK in it, and the double in a third process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_env.training.trl import AgentEnv
from box import why_not
from rich.console import Console

ROOT = Path(__file__).resolve().parents[3]
DOUBLE = ROOT / "tests" / "doubles" / "e2b_double.py"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A double in a process of its own, named by variables that the local server inherits."""
    if reason := why_not():
        pytest.skip(reason)
    with subprocess.Popen([sys.executable, DOUBLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdin is not None
        for name, value in json.loads(run.stdout.readline()).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AGENT_ENV_E2B_PLAN", "pro")
        yield
        run.stdin.close()
        assert run.wait(30) == 0, "the double met what it doesn't know, or sandboxes were left"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # what Torch and Transformers warn of is none of this test's
@pytest.mark.usefixtures("no_processes_left", "account")
def test_gridsim_is_played_and_trained_on_e2b(
    gridsim_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    import torch

    torch.set_num_threads(1)
    from examples.train_gridsim import episodes, gridsim, grpo, model
    from examples.train_gridsim.settings import Settings

    settings = Settings(sandbox="e2b", out=tmp_path, grpo_steps=1, rollouts=2, generations=2, max_completion_length=32)
    with AgentEnv.local(gridsim_bundle, split="train", sandbox="e2b", max_concurrent_envs=3) as env:
        environment = env.factory()
        environment.reset(**env.dataset[0])
        assert json.loads(environment.submit_schedule(actions=[0] * 24))["submitted"]
        assert environment.get_reward() == 0.2

        tokenizer = model.gridsim_tokenizer(env.factory, gridsim.max_step(), gridsim.report([0.0] * 24, [0] * 24))
        watch = episodes.Watch(env.factory)
        days = grpo.in_price_code(env.dataset.select([100, 1100]))
        trainer = grpo.make_trainer(model.build_model(tokenizer), tokenizer, days, watch.factory, settings)
        steps, unscored = grpo.train(trainer, watch, Console(quiet=True))
    assert (len(steps), unscored) == (1, 0)

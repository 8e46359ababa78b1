"""GridSim on a double, end to end: the local server's process, the real SDK in it, the double in a third one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import box
import pytest

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def account(double: str) -> Iterator[None]:
    """A double in a process of its own, named by variables that the local server inherits.

    Args:
        double: The double's module beside this one.
    """
    box.require()
    program = [sys.executable, str(Path(__file__).with_name(f"{double}.py"))]
    with (
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert run.stdin is not None
        assert run.stdout is not None
        for name, value in json.loads(run.stdout.readline()).items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(ROOT))  # the examples are there
        yield
        run.stdin.close()
        assert run.wait(30) == 0, "the double met what it doesn't know, or sandboxes were left"


def played_and_trained(sandbox: str, bundle: Path, out: Path) -> None:
    """Plays one task by hand, then takes one step of GRPO on others.

    Args:
        sandbox: The provider.
        bundle: GridSim's.
        out: For what the training writes.
    """
    import torch
    from agent_env.training.trl import AgentEnv
    from rich.console import Console

    from examples.train_gridsim import episodes, gridsim, grpo, model
    from examples.train_gridsim.settings import Settings

    torch.set_num_threads(1)
    settings = Settings(sandbox=sandbox, out=out, grpo_steps=1, rollouts=2, generations=2, max_completion_length=32)
    with AgentEnv.local(bundle, split="train", sandbox=sandbox, max_concurrent_envs=3) as env:
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

"""Two processes of one run, as torchrun starts them, train on one server of their node: gloo, on processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAIN = """
import json, os, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.filterwarnings("ignore")
import torch
from trl import GRPOConfig, GRPOTrainer
from agent_env.training.trl import AgentEnv
from agent_env_core.plugins import plugins
from examples.train_gridsim.model import build_model, build_tokenizer

torch.set_num_threads(1)
out = sys.argv[3]
rank = os.environ["RANK"]
with AgentEnv.local(sys.argv[2], sandbox="process", split="train", max_concurrent_envs=4) as env:
    tokenizer = build_tokenizer([])
    model = build_model(tokenizer, hidden=32, layers=1)
    config = GRPOConfig(
        output_dir=out, max_steps=2, per_device_train_batch_size=2, num_generations=2, max_completion_length=4,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none", disable_tqdm=True, save_strategy="no",
        logging_steps=1, learning_rate=1e-2,
    )
    grpo = plugins().trainer_adapter("grpo")
    problems = grpo.check(env, vars(config))
    too_many = grpo.check(env, {**vars(config), "generation_batch_size": None, "per_device_train_batch_size": 4})
    trainer = GRPOTrainer(model=model, args=config, processing_class=tokenizer, **grpo.arguments(env))
    trainer.train()
    weights = sum(float(weight.abs().sum()) for weight in model.parameters())
    steps = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    told = {"server": env._local.pid, "processes": trainer.accelerator.num_processes, "problems": problems,
            "too_many": too_many, "steps": steps, "weights": weights}
    open(f"{out}-{rank}.json", "w").write(json.dumps(told))
"""


@pytest.mark.usefixtures("no_processes_left")
def test_two_ranks_train_on_one_server(counter_bundle: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    ran = subprocess.run(
        [*command, str(ROOT), str(counter_bundle), str(tmp_path / "out")],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    one, other = (json.loads((tmp_path / f"out-{rank}.json").read_text("utf-8")) for rank in (0, 1))
    assert one["server"] == other["server"]
    assert one["processes"] == 2
    assert one["problems"] == []
    assert "is 4 on each of 2 processes: 8 rollouts at once" in one["too_many"][0]
    assert len(one["steps"]) == 2
    assert one["weights"] == other["weights"]

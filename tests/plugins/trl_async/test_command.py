"""``agent-env train`` with ``async_grpo``: the command's own way, from its checks to a saved adapter."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import yaml
from agent_env.training.trl import AgentEnv
from click.testing import CliRunner, Result

from agent_env_core.cli.main import main

pytest.importorskip("trl.experimental.async_grpo.packing", reason="TRL 1.18 moved what the stand-ins fit")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.filterwarnings("ignore")]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
READY_SECONDS = 120.0
ARGUMENTS = {
    "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "per_device_train_batch_size": 8,
    "num_generations": 8, "max_steps": 3, "save_steps": 3, "logging_steps": 1, "learning_rate": 1e-3,
    "max_completion_length": 16, "max_tool_calling_iterations": 3, "max_inflight_tasks": 8, "max_staleness": 2,
    "vllm_server_timeout": 240, "request_timeout": 60, "report_to": "none", "disable_tqdm": True, "token_budget": -1,
}  # fmt: skip


@pytest.fixture(scope="module")
def model(one_toolset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that can play the counter."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        patch.syspath_prepend(str(HERE))
        import tiny

        torch.set_num_threads(1)
        with AgentEnv.local(one_toolset, split="train", sandbox="process") as env:
            tiny.make(str(folder), env.factory, env.dataset["prompt"])
    return folder


def written(folder: Path, model: Path, vllm: str, *, arguments: Any = None, **tasks: Any) -> Path:
    """A training file for the vLLM server at ``vllm``, in a folder where the run's ``out`` will be too."""
    settings = {**ARGUMENTS, "output_dir": str(folder / "out"), "vllm_server_base_url": vllm, **(arguments or {})}
    document = {
        **tasks, "split": "train", "model": str(model), "trainer": "async_grpo", "arguments": settings,
        "peft": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"},
    }  # fmt: skip
    (folder / "async.yaml").write_text(yaml.safe_dump(document), "utf-8")
    return folder / "async.yaml"


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """The double of vLLM as a process of its own, ready: its URL."""
    command = [sys.executable, str(HERE / "fake_vllm.py"), str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        deadline = time.monotonic() + READY_SECONDS
        while not httpx.get(f"{url}/health", trust_env=False, timeout=READY_SECONDS).is_success:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url
        server.stdin.close()


def train(path: Path) -> None:
    """Trains as a user starts it; the stand-ins get in by ``PYTHONPATH`` alone."""
    done = subprocess.run(
        [sys.executable, "-m", "agent_env_core.cli", "train", str(path)],
        capture_output=True, text=True, check=False, timeout=800, cwd=path.parent,
        env={
            **os.environ, "PYTHONPATH": f"{HERE / 'no_gpu'}:{HERE}", "TRL_EXPERIMENTAL_SILENCE": "1",
            "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_processes_left")
def test_it_trains_to_the_end_and_saves(one_toolset: Path, model: Path, tmp_path: Path) -> None:
    with serving(model) as url:
        train(written(tmp_path, model, url, bundle=str(one_toolset), sandbox="process"))
        served = httpx.get(f"{url}/stats", trust_env=False).json()["served"]
    out = tmp_path / "out"
    assert (out / "adapter_model.safetensors").is_file()
    state = json.loads((out / "checkpoint-3" / "trainer_state.json").read_text("utf-8"))
    steps = [entry for entry in state["log_history"] if "reward" in entry]
    assert len(steps) == 3
    assert all(step["tools/call_frequency"] > 0 for step in steps)
    assert str(served[-1]).startswith("trl-policy-v"), "the last rollouts were played by weights that training sent"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_words_that_come_with_the_reset_reach_vllm(tiny_model: Path, tmp_path: Path) -> None:
    """A server of somebody else's tells a task's words at its reset alone."""
    from transformers import AutoTokenizer

    command = [sys.executable, str(ROOT / "tests" / "plugins" / "trl" / "plain_server.py")]
    small = {"per_device_train_batch_size": 2, "num_generations": 2, "max_inflight_tasks": 2, "max_steps": 2}
    with serving(tiny_model) as url, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as plain:
        assert plain.stdout is not None
        try:
            train(written(tmp_path, tiny_model, url, arguments=small, url=plain.stdout.readline().strip()))
        finally:
            plain.kill()
        asked = httpx.get(f"{url}/stats", trust_env=False).json()["prompts"]
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model))
    prompts = [tokenizer.decode(prompt) for prompt in asked]
    for words in ("Find a number below 5.", "Find my number, of task 1."):
        assert any(words in prompt for prompt in prompts)


async def test_no_gpu_is_told_before_weights_are_read_and_a_dry_run_needs_none(
    vllm: Callable[..., Awaitable[tuple[str, Any]]], one_toolset: Path, tiny_model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In this process, and in a thread of it, since its own loop serves the double; the model's weights are gone."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model, ignore=shutil.ignore_patterns("*.safetensors"))
    url, _ = await vllm(model=str(model))
    path = written(tmp_path, model, url, bundle=str(one_toolset), sandbox="process")

    async def train_here(*options: str) -> Result:
        arguments = ["train", str(path), *options]
        return await asyncio.to_thread(CliRunner().invoke, main, arguments, catch_exceptions=False)

    refused = await train_here()
    assert refused.exit_code == 1
    (problem,) = [line for line in refused.output.splitlines() if "arguments: " in line]
    assert "there is no GPU here for the trainer, and AsyncGRPO's packed attention " in problem
    assert "A100, A10G, L4, L40S, H100 alone" in problem
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    played = await train_here("--dry-run")
    assert played.exit_code == 0, played.output
    assert "counter-v1: 2 tasks of train, async_grpo on" in played.stderr
    assert "reward    " in played.stdout

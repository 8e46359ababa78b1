"""A script as a user writes it, with AsyncGRPO: runs one after another, each told of in a line of JSON.

Usage: ``train_async.py RUNS FOLDER BUNDLE [VLLM_URL COMMAND...]``. RUNS are ``trains``, ``capacity``, ``killed``, and
``foreign`` for a bundle with a second toolset, with commas. COMMAND serves the model, whose folder is added to it;
without one the double does. The rollout process imports this again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUNS, FOLDER, BUNDLE, *SERVER = sys.argv[1:]
MODEL = str(Path(FOLDER, "model"))


@contextmanager
def vllm() -> Iterator[str]:
    """A running server of the model: its URL, where it may not be ready yet."""
    url, *command = SERVER or ["", sys.executable, str(Path(__file__).with_name("fake_vllm.py"))]
    out = sys.stderr if SERVER else subprocess.PIPE
    with subprocess.Popen([*command, MODEL], stdin=subprocess.PIPE, stdout=out, text=True) as server:
        try:
            yield url or server.stdout.readline().strip()
        finally:
            if SERVER:
                server.terminate()
            server.stdin.close()


def trainer(url: str, dataset: Any, factory: Any, **settings: Any) -> Any:
    """TRL's trainer."""
    import stand_ins
    from peft import LoraConfig
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    stand_ins.install()
    args = {
        "output_dir": str(Path(FOLDER, "out")), "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
        "per_device_train_batch_size": 8, "num_generations": 8, "max_steps": 4, "learning_rate": 1e-3,
        "max_completion_length": 4, "max_tool_calling_iterations": 3, "max_inflight_tasks": 8, "max_staleness": 2,
        "vllm_server_base_url": url, "vllm_server_timeout": 600, "request_timeout": 60, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "token_budget": -1,
    }  # fmt: skip
    return AsyncGRPOTrainer(
        model=MODEL,
        args=AsyncGRPOConfig(**{**args, **settings}),
        train_dataset=dataset,
        environment_factory=factory,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )


def forget_adapters(url: str) -> None:
    """Unloads what an earlier run left on the vLLM server, as TRL's next run needs it."""
    import requests

    for model in requests.get(f"{url}/v1/models", timeout=60).json()["data"]:
        if model.get("parent"):
            requests.post(f"{url}/v1/unload_lora_adapter", json={"lora_name": model["id"]}, timeout=60)
    requests.post(f"{url}/resume", timeout=60)  # a run that is broken off may leave it paused


def unplayable(rows: Any) -> Any:
    """The first row, as of a task that the server hasn't got."""
    return rows.select([0]).map(lambda row: {"task_id": "gone"})


def failure(factory: Any, row: Any) -> str:
    """What the tools say in the episode of a row that can't be played."""
    environment = factory()
    environment.reset(**row)
    try:
        return f"played: {environment.add(amount=1)}"
    except Exception as exc:
        return str(exc)
    finally:
        environment._session.close()


def run(name: str, url: str, *made: Any, **settings: Any) -> None:
    """Trains, and says what came of it."""
    import multiprocessing

    from transformers import TrainerCallback

    killed = 0.0

    class Kill(TrainerCallback):
        def on_step_end(self, *args: Any, **keywords: Any) -> None:
            nonlocal killed
            if not killed:  # rollouts that were played by then may make another step
                (rollouts,) = multiprocessing.active_children()
                killed = time.monotonic()
                os.kill(rollouts.pid, signal.SIGKILL)

    training = trainer(url, *made, **settings)
    if name == "killed":  # once the rollouts are on their way
        training.add_callback(Kill)
    error: Exception | None = None
    try:
        training.train()
    except Exception as exc:
        error = exc
    ended = time.monotonic()
    # Listed until it is known how it ended, and two threads may ask that at once.
    while multiprocessing.active_children() and time.monotonic() < ended + 60:
        time.sleep(0.05)
    report = {
        "run": name,
        "error": None if error is None else [type(error).__name__, str(error), *getattr(error, "__notes__", [])],
        "seconds_since_the_kill": ended - killed,
        "log": training.state.log_history,
        "children": [child.name for child in multiprocessing.active_children()],
    }
    print(json.dumps(report), flush=True)
    forget_adapters(url)


def look(url: str) -> None:
    """Says what the adapter's checks make of the vLLM server."""
    from agent_env_trl_async.vllm import problems, read

    server, found = read(url)
    assert server is not None, found
    report = {
        "run": "look",
        "problems": problems(server, model=MODEL, rank=4, staleness=2),
        "room": server.max_model_len,
        "tokens": server.tokens([{"role": "user", "content": "Count."}], []),
    }
    print(json.dumps(report), flush=True)


def main() -> None:
    """Trains, in each of the ways that were asked for."""
    import tiny
    import torch
    from agent_env.training.trl import AgentEnv
    from datasets import concatenate_datasets

    torch.set_num_threads(1)
    with AgentEnv.local(BUNDLE, split="train", sandbox="process", max_concurrent_envs=8) as env:
        factory = env.factory["counter"] if isinstance(env.factory, dict) else env.factory
        (gone,) = unplayable(env.dataset)
        tiny.make(MODEL, factory, env.dataset["prompt"], [failure(factory, gone)])
        with vllm() as url:
            for name in RUNS.split(","):
                rows, settings = env.dataset, {"max_steps": 4}
                if name == "trains":
                    rows = [rows, unplayable(rows), *[rows] * 10]  # one only, in whatever order groups get done
                    rows = concatenate_datasets(rows)
                elif name == "capacity":
                    settings = {"max_inflight_tasks": 10}
                elif name == "foreign":
                    rows = env.dataset_for("eval").filter(lambda row: row["environment"] != "counter")
                elif name == "killed":
                    settings = {"max_steps": 1000}
                columns = [column for column in rows.column_names if column != "environment"]
                run(name, url, rows.select_columns(columns), factory, **settings)
            look(url)


if __name__ == "__main__":
    main()

"""``agent-env train`` as torchrun and ``accelerate launch`` start it: two processes, gloo, on processors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (
    "accelerate.commands.accelerate_cli", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
    "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
)  # fmt: skip
PATIENCE_SECONDS = 300.0
ENDS_SECONDS = 120.0


class Launched:
    """A run in two processes.

    Args:
        launcher: The launcher's module and its options.
        file: The training file.
        out: Where its messages go.
        options: More options of ``agent-env train``.
    """

    def __init__(self, launcher: Sequence[str], file: Path, out: Path, *options: str) -> None:
        self.out = out
        self.mark = str(out)
        command = [sys.executable, "-m", *launcher, "-m", "agent_env_core.cli", "train", str(file), *options]
        with out.open("w") as messages:
            self.process = subprocess.Popen(
                command, stdout=messages, stderr=messages, cwd=out.parent,
                env={
                    **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1",
                    "LAUNCHED": self.mark,
                },
            )  # fmt: skip

    def ended(self) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE_SECONDS)

    def said(self) -> str:
        """Its messages."""
        return self.out.read_text("utf-8", errors="replace")

    def left(self) -> list[list[str]]:
        """The processes of it that there are, orphans too."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("LAUNCHED") == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.cmdline())
            except psutil.Error:
                continue
        return found


Launch = Callable[..., Launched]


@pytest.fixture
def launch(rows: Path, tiny_model: Path, tmp_path: Path) -> Iterator[Launch]:
    """Starts a run; nothing is left of it at the end."""
    started: list[Launched] = []

    def start(launcher: Sequence[str], *options: str, **changed: Any) -> Launched:
        arguments = {
            "output_dir": str(tmp_path / "out"), "max_steps": 2, "save_steps": 2, "logging_steps": 1,
            "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 8, "use_cpu": True,
            "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True, **changed,
        }  # fmt: skip
        document = {"bundle": str(rows), "sandbox": "process", "model": str(tiny_model), "arguments": arguments}
        (tmp_path / "train.yaml").write_text(yaml.safe_dump(document), "utf-8")
        started.append(Launched(launcher, tmp_path / "train.yaml", tmp_path / "messages.txt", *options))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.terminate()
            one.process.wait(ENDS_SECONDS)
        until(lambda one=one: not one.left(), seconds=ENDS_SECONDS)


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_it_trains_on_one_server_and_one_rank_speaks(launch: Launch, tmp_path: Path, launcher: Sequence[str]) -> None:
    run = launch(launcher)
    status, said = run.ended(), run.said()
    assert status == 0, said
    for once in ("rows-v1: 5 tasks of all, grpo on", "preparing the image of env"):
        assert said.count(once) == 1, said
    assert (tmp_path / "out" / "model.safetensors").is_file()
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text("utf-8"))
    assert len([entry for entry in state["log_history"] if "reward" in entry]) == 2
    assert state["log_history"][0]["num_tokens"] > 0


def test_a_dry_run_plays_in_one_rank(launch: Launch) -> None:
    run = launch(TORCHRUN, "--dry-run")
    status, said = run.ended(), run.said()
    assert status == 0, said
    assert said.count("\nreward ") == 1


def test_a_problem_ends_the_run_with_an_error(launch: Launch) -> None:
    run = launch(TORCHRUN, max_stepps=1)
    status, said = run.ended(), run.said()
    assert status == 1
    assert "arguments.max_stepps: GRPOConfig has no such field (did you mean max_steps?)" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_all_of_it(launch: Launch, number: signal.Signals) -> None:
    run = launch(TORCHRUN, max_steps=10_000, save_strategy="no")
    until(lambda: "'loss'" in run.said(), seconds=PATIENCE_SECONDS)
    run.process.send_signal(number)
    assert run.ended() != 0
    until(lambda: not run.left(), seconds=ENDS_SECONDS)

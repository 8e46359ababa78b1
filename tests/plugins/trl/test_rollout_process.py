"""Errors of a process that plays rollouts end the run, and nothing else does: user pain 11, without a trainer's weight.

``test_training.py`` of the asynchronous trainer does the same with TRL itself.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import until

TRAINER = Path(__file__).parent.parent / "trl_async" / "fake_trainer.py"


def output(way: str) -> list[str]:
    done = subprocess.run([sys.executable, str(TRAINER), way], capture_output=True, text=True, check=True, timeout=90)
    return [*done.stdout.splitlines(), done.stderr]


WHERE = pytest.mark.parametrize("thread", ["", "thread-"], ids=["main", "another"])


@WHERE
def test_an_error_of_a_rollout_is_raised_where_training_is(thread: str) -> None:
    error, note, *trace, fine, _ = output(f"{thread}raises")
    assert error.startswith("TypeError: a row says what to play by its columns split, index and task_id")
    assert note.startswith("In the rollout process (pid ")
    assert any("in guard" in line for line in trace)
    assert fine == "fine"


@WHERE
def test_a_killed_process_is_noticed_and_not_waited_for(thread: str) -> None:
    error, fine, _ = output(f"{thread}killed")
    assert error.startswith("AgentEnvError: the rollout process (pid ")
    assert "was killed by SIGKILL; most often the kernel does that when memory runs out" in error
    assert fine == "fine"


@pytest.mark.parametrize("way", ["ends", "terminated", "thread-ends"])
def test_a_process_that_the_trainer_ends_is_no_error(way: str) -> None:
    assert output(way) == ["ended", "fine", ""]


def test_a_rollout_process_ends_with_its_trainer() -> None:
    """However that ends: it would wait for somebody to read its rollouts, and nobody does."""
    done = subprocess.run([sys.executable, str(TRAINER), "orphaned"], capture_output=True, text=True, timeout=90)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_script_without_a_main_guard_makes_no_second_server(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing\n"
        "from agent_env.training.trl import AgentEnv\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "    child.start()\n"
        "    child.join()\n"
        "else:\n"
        "    AgentEnv.local('no-bundle')\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60)
    assert "AgentEnvError: this script makes an AgentEnv whenever it's imported" in done.stderr

"""Errors of a process that plays rollouts end the run, and nothing else does, without a trainer's weight.

``test_training.py`` of the asynchronous trainer does the same with TRL itself.
"""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from agent_env_trl import rollout_process as module
from agent_env_trl.rollout_process import _Exception, _release, _Stack, watch
from pydantic import BaseModel
from waiting import ended, until

from agent_env_core.errors import AgentEnvError, CapacityError, describe

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


class Row(BaseModel):
    index: int


def _error(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of each kind
        act()
    return caught.value


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (CapacityError("full"), CapacityError),
        (KeyError("index"), KeyError),
        (_error(Path("/none/at/all").read_bytes), AgentEnvError),
        (_error(lambda: Row.model_validate({"index": "x"})), AgentEnvError),
        (ExceptionGroup("two at once", [ValueError("one"), ValueError("two")]), AgentEnvError),
    ],
    ids=lambda value: "" if isinstance(value, type) else type(value).__name__,
)
def test_an_error_of_any_kind_says_the_same_in_another_thread(reason: Exception, kind: type[Exception]) -> None:
    """Python makes the instance there, of a class and of nothing else; not every kind can be made so."""
    reason.add_note("In the rollout process")
    told = _Exception(0, reason)
    assert not told._raised
    with pytest.raises(kind) as raised:
        raise told._kind
    assert told._raised
    assert describe(reason) in describe(raised.value)
    assert raised.value.__notes__ == ["In the rollout process"]


def _act() -> None:
    act()  # noqa: F821 - of the module that it's put into


def _of_module(name: str, act: Callable[[], object]) -> Callable[[], object]:
    return FunctionType(_act.__code__, {"__name__": name, "act": act})


@pytest.mark.parametrize("module", ["threading", "multiprocessing.synchronize"])
def test_a_lock_that_is_just_taken_is_not_broken(module: str) -> None:
    """``Condition.wait`` takes its lock again at its end; whoever waits for it gives it away, held or not."""
    watching = watch()

    def strike() -> None:
        frame = sys._getframe(1)
        watching._reason, watching._run, watching._gently = CapacityError("full"), _Stack.of(frame).run, True
        watching._on_signal(signal.SIGURG, frame)
        with pytest.raises(CapacityError, match="full"):  # it waits there
            watching._on_signal(signal.SIGURG, frame)

    try:
        _of_module("trl.trainer", _of_module(module, strike))()
    finally:
        watching._reason = watching._run = None


@WHERE
@pytest.mark.parametrize("way", ["killed", "holding"])
def test_a_killed_process_is_noticed_and_not_waited_for(thread: str, way: str) -> None:
    """Also where it was killed within a look at the event by which it is stopped, whose lock it takes along."""
    error, fine, _ = output(f"{thread}{way}")
    assert error.startswith("AgentEnvError: the rollout process (pid ")
    assert "was killed by SIGKILL; most often the kernel does that when memory runs out" in error
    assert fine == "fine"


def test_a_run_that_begins_after_a_process_ended_is_not_charged_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    followed, ended, begun = (threading.Event() for _ in range(3))
    wait = module.connection.wait

    def waits(things: list[Any], timeout: float | None = None) -> list[Any]:
        followed.set()
        return wait(things, timeout)

    def obituary(process: object) -> str:
        ended.set()
        assert begun.wait(60)
        return "it ended"

    monkeypatch.setattr(module.connection, "wait", waits)
    monkeypatch.setattr(module, "_obituary", obituary)
    monkeypatch.setattr(module, "ORDERLY_SECONDS", 0.0)
    ours, theirs = multiprocessing.Pipe()
    lives, life = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=lives.recv)
    child.start()
    theirs.send(child.pid)
    following = threading.Thread(target=watch()._follow, args=[ours], daemon=True)
    following.start()
    assert followed.wait(60)
    life.send("end")
    assert ended.wait(60)

    def run() -> None:  # it would be raised here
        begun.set()
        following.join(60)

    _of_module("trl.trainer", run)()
    assert not following.is_alive()
    child.join()
    for end in (theirs, lives, life):
        end.close()


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_what_a_dead_process_holds_is_given_away(kind: str) -> None:
    fork = multiprocessing.get_context("fork")
    lock = getattr(fork, kind)()
    holder = fork.Process(target=lock.acquire)
    holder.start()
    holder.join()
    assert not lock.acquire(block=False)
    _release(lock)
    assert lock.acquire(block=False)
    lock.release()
    with pytest.raises(ValueError, match="too many times"):
        _release(lock)


@pytest.mark.parametrize("way", ["ends", "terminated", "thread-ends"])
def test_a_process_that_the_trainer_ends_is_no_error(way: str) -> None:
    assert output(way) == ["ended", "fine", ""]


def test_a_rollout_process_ends_with_its_trainer() -> None:
    """However that ends: it would wait for somebody to read its rollouts, and nobody does."""
    done = subprocess.run([sys.executable, str(TRAINER), "orphaned"], capture_output=True, text=True, timeout=90)
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    until(lambda: ended(pid))


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

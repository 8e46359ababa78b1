"""TRL's asynchronous trainer as far as its ends go: a spawned process, and a ``stop`` that waits for it to wake up.

Usage: ``fake_trainer.py WAY``: ``raises``, ``killed``, ``holding``, ``ends``, ``terminated``, ``orphaned``; ``thread-``
before it trains in another thread. It says how it ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from types import FunctionType
from typing import Any

from agent_env_trl.factory import environment_class

from agent_env_core.client import Address, Toolset


def rollouts(factory: type, way: str, ready: Any, stop: Any) -> None:
    """The rollout process. As with TRL, the class comes out of the pickle before the process knows who started it."""
    environment: Any = factory()
    threading.Thread(target=stop.wait, daemon=True).start()
    if way == "raises":
        assert environment.reset(prompt=[]) is None  # such a row raises, and not here
        assert environment.reset(split="train", index=0) is None
        assert environment.get_reward() is None
    ready.set()
    if way == "holding":  # as any look at the event does for a moment
        stop._cond.acquire()
    if way in ("killed", "holding"):
        os.kill(os.getpid(), signal.SIGKILL)
    stop.wait()


class Trainer:
    """Trains nothing, for ``seconds``."""

    def __init__(self, way: str, factory: type, seconds: float) -> None:
        self.way, self.factory, self.seconds = way, factory, seconds
        self.stop_event, self.ready = (multiprocessing.get_context("spawn").Event() for _ in range(2))

    def train(self) -> None:
        """What hangs for ever when the rollout process is dead."""
        arguments = (self.factory, self.way, self.ready, self.stop_event)
        self.process = multiprocessing.get_context("spawn").Process(target=rollouts, args=arguments, daemon=True)
        self.process.start()
        try:
            self.ready.wait()
            if self.way == "orphaned":
                print(self.process.pid, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if self.way == "terminated":  # by the trainer, as a worker that doesn't listen
                return
            deadline = time.monotonic() + self.seconds
            while time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the rollout process."""
        if self.way == "terminated":
            self.process.terminate()
        else:
            self.stop_event.set()
        self.process.join()


def run(trainer: Trainer) -> None:
    """Trains, and says what came of it."""
    try:
        trainer.train()
    except Exception as exc:
        print(f"{type(exc).__name__}: {exc}", *getattr(exc, "__notes__", []), sep="\n")
    else:
        print("ended")


def main() -> None:
    """Trains once."""
    thread, _, way = sys.argv[1].rpartition("-")
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
    factory = environment_class(
        Toolset("counter", "abc", (tool,)), name="counter", hosts=[Address.of("http://host")], tool_timeout=60,
        reset_timeout=600, combine=None,
    )  # fmt: skip
    for name in ("train", "stop"):  # the watch knows the trainer's frames by their modules
        code = vars(Trainer)[name].__code__
        setattr(Trainer, name, FunctionType(code, {**globals(), "__name__": "trl.trainer"}))
    trainer = Trainer(way, factory, 60 if way in ("raises", "killed", "holding") else 2)
    if thread:
        training = threading.Thread(target=run, args=[trainer])
        training.start()
        training.join()
    else:
        run(trainer)
    time.sleep(2)  # whatever came late would come now
    print("fine")


if __name__ == "__main__":
    main()

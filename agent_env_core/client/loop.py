"""One event loop thread in each process, shared by every session of it.

Sessions are used from any thread, and from inside other event loops too (a notebook has one). A thread of our own also
goes on answering the server's pings while the trainer's threads compute.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class _LoopThread:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._main, name="agent-env-client", daemon=True)
        self.thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def stop(self) -> None:
        with contextlib.suppress(RuntimeError):  # already closed
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=2)


_lock = threading.Lock()
_running: _LoopThread | None = None


def _after_fork() -> None:
    """A forked child has the objects but not the thread: it starts over."""
    global _lock, _running
    _lock, _running = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


def client_loop() -> asyncio.AbstractEventLoop:
    """This process's loop, started on first use."""
    global _running
    with _lock:
        if _running is None or not _running.thread.is_alive():
            _running = _LoopThread()
            atexit.register(_running.stop)
        return _running.loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on this process's loop and waits for it, from any thread but the loop's own."""
    return asyncio.run_coroutine_threadsafe(coroutine, client_loop()).result()


def run_behind(coroutine: Coroutine[Any, Any, T]) -> Future[T] | None:
    """Runs a coroutine on this process's loop without waiting for it; drops it where no loop runs any more."""
    running = _running
    try:
        if running is None or not running.thread.is_alive():
            raise RuntimeError("no loop runs")
        return asyncio.run_coroutine_threadsafe(coroutine, running.loop)
    except RuntimeError:  # the process is ending, and its sockets with it
        coroutine.close()
        return None

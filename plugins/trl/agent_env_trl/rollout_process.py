"""How environments in a process of their own end the run that they are part of.

TRL's ``AsyncGRPOTrainer`` plays its rollouts in a process that it spawns. An exception there ends that process, and
then the trainer waits for it for ever: its ``finally`` sets a ``multiprocessing.Event``, which waits for each waiter to
wake up, and the dead one never does. A process that is killed outright goes unnoticed for minutes first, and ends the
same way, or in the wait for a lock that it held just then. So here, on both sides:

* in the rollout process, an error that must stop training is sent to the process that trains, and not raised: the
  worker lives on, and the trainer can stop it in order (:class:`Reporter`);
* in the process that trains, a thread waits for such errors and for the end of the rollout process (:class:`Watch`).
  It raises what it learns in the thread that trains, as long as that is inside the trainer: in the main thread by a
  signal handler, in another as an asynchronous exception. A wait for a dead process is broken off;
* a rollout process whose trainer is gone ends: it would wait for ever for somebody to take its last rollouts.

Nothing of TRL is replaced. The two sides find each other because pickling an environment class starts the watch.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import SEMAPHORE, SemLock  # type: ignore[attr-defined]
from types import FrameType
from typing import Any, TypeVar

from agent_env_core.errors import AgentEnvError, describe

logger = logging.getLogger("agent_env.training.trl")

SIGNAL = signal.SIGURG
"""Ignored by default and used by next to nobody, so that a stray one harms nothing. Other handlers are still called."""
GIVE_UP_SECONDS = 600.0
"""How long the trainer is asked to stop: a step of a big model is one long call into C."""
ORDERLY_SECONDS = 6.0
"""How long the trainer may go on after a rollout process ended: it may be the one that ended it, or say why itself."""
WAITS = frozenset({("multiprocessing.synchronize", "notify"), ("multiprocessing.synchronize", "__enter__")})
"""Where a thread waits for another process: to wake up, or to give a lock away."""
Channel = connection.Connection

T = TypeVar("T")


class Reporter:
    """The rollout process's end: tells the process that trains that it exists, and which error must stop training.

    Args:
        channel: The connection to the process that trains.
    """

    def __init__(self, channel: Channel) -> None:
        self._told = False
        self._channel = channel
        self._lock = threading.Lock()

    def guard(self, act: Callable[[], T]) -> T | None:
        """Does ``act``, whose first error goes to the process that trains; then, and ever after, the answer is None."""
        if self._told:
            return None
        try:
            return act()
        except Exception as exc:
            with self._lock:
                if not self._told:
                    try:
                        self._channel.send((_pickled(exc), describe(exc), "".join(traceback.format_exception(exc))))
                    except OSError:  # nobody trains any more
                        raise exc from None
                    self._told = True
            return None


@cache
def reporter(address: str) -> Reporter | None:
    """This process's reporter to the watch at ``address``; None when that isn't there."""
    key = bytes(multiprocessing.current_process().authkey)
    parent = os.getppid()
    try:
        channel = connection.Client(address, authkey=key)
        channel.send(os.getpid())
    except (OSError, EOFError, multiprocessing.AuthenticationError):
        return None  # another machine, or a process that this family didn't start: its errors are raised there
    threading.Thread(target=_end_with, args=[parent], name="agent-env-rollouts", daemon=True).start()
    return Reporter(channel)


def _end_with(parent: int) -> None:
    """Ends this process once ``parent`` is gone, whose child it is.

    :mod:`multiprocessing` doesn't know the parent yet when the class comes out of the arguments' pickle.
    """
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)  # an orderly end waits until the rollouts are read, and nobody reads them any more


class Watch:
    """The training process's end. Use :func:`watch`, which makes one for each process."""

    def __init__(self) -> None:
        key = bytes(multiprocessing.current_process().authkey)
        # an abstract socket leaves no file behind, and has no path that could be too long
        name = f"\0agent-env-{secrets.token_hex(8)}" if sys.platform == "linux" else None
        self._listener = connection.Listener(name, "AF_UNIX", authkey=key)
        self.address = name or str(self._listener.address)
        self._reason: Exception | None = None
        self._run: FrameType | None = None
        self._gently = False  # once more, locks are left alone
        self._before: Any = None
        threading.Thread(target=self._accept, name="agent-env-rollouts", daemon=True).start()

    def arm(self) -> None:
        """Has the main thread listen to the watch. Only the main thread itself can do that; others change nothing."""
        if threading.current_thread() is not threading.main_thread():
            return
        current = signal.getsignal(SIGNAL)
        if current != self._on_signal:
            self._before = current
            signal.signal(SIGNAL, self._on_signal)

    def _accept(self) -> None:
        while True:
            try:
                channel = self._listener.accept()
            except (OSError, EOFError, multiprocessing.AuthenticationError):  # a stranger, or no file descriptor left
                time.sleep(0.1)
            else:
                threading.Thread(target=self._follow, args=[channel], name="agent-env-rollouts", daemon=True).start()

    def _follow(self, channel: Channel) -> None:
        """Follows one rollout process until it ends, or tells why training must."""
        process = training = told = None
        with channel:
            try:
                pid = int(channel.recv())
                process = next((child for child in multiprocessing.active_children() if child.pid == pid), None)
                connection.wait([channel] if process is None else [channel, process.sentinel])
                training = _training()  # now: a run that begins later isn't the one that it was part of
                told = _rebuilt(pid, *channel.recv()) if channel.poll() else None
            except (OSError, EOFError):
                pass  # it died, and its end of the channel with it
            if told is not None:
                self._stop(told, training, process)
            elif process is not None:
                self._stop(AgentEnvError(_obituary(process)), training, process, after=ORDERLY_SECONDS)

    def _stop(
        self, reason: Exception, training: tuple[int, FrameType] | None, process: BaseProcess | None, after: float = 0.0
    ) -> None:
        """Raises ``reason`` in the thread that trains until it has left its run, ``after`` seconds from now.

        Once may not be enough: an exception can get lost in a callback of the garbage collector. A wait for the dead
        ``process`` is broken off at once.
        """
        started = time.monotonic()
        thread, run = training or (None, None)
        self._reason, self._run, self._gently = reason, run, True
        if thread is not None:
            way = _Signal(thread) if thread == threading.main_thread().ident else _Exception(thread, reason)
            stuck: FrameType | None = None
            while run is not None and (stack := _Stack.of_thread(thread)).run is run:
                before, stuck = stuck, stack.waiting
                dead = process is None or not process.is_alive()
                if dead and stuck is not None and stuck is before:  # the living keep no lock for that long
                    way.free(stuck)
                elif not stack.stopping and after <= time.monotonic() - started < GIVE_UP_SECONDS:
                    way.tell()
                time.sleep(1.0)
        self._reason = self._run = None
        if run is None and not after:
            logger.error("training must stop, and no thread of this process trains: %s", describe(reason))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        stack = _Stack.of(frame)
        if self._reason is not None and stack.run is self._run and (stack.waiting is not None or not stack.stopping):
            if not (self._gently and _in_lock(frame)):
                raise self._reason
            self._gently = False
        if callable(self._before):
            self._before(number, frame)


@dataclass(frozen=True)
class _Stack:
    """What a thread is doing, as far as it matters here.

    Attributes:
        run: The outermost frame of the trainer, which stands for one training run; None outside of any.
        stopping: Whether the trainer is stopping its rollout process.
        waiting: The frame that waits until a process has woken up or given a lock away, if there's one.
    """

    run: FrameType | None = None
    stopping: bool = False
    waiting: FrameType | None = None

    @classmethod
    def of(cls, frame: FrameType | None) -> _Stack:
        """Of a thread's innermost frame."""
        found = cls()
        while frame is not None:
            module, function = str(frame.f_globals.get("__name__", "")), frame.f_code.co_name
            found = cls(
                frame if module.startswith(("trl.", "transformers.trainer")) else found.run,
                found.stopping or (module.startswith("trl.") and function == "stop"),
                found.waiting or (frame if (module, function) in WAITS else None),
            )
            frame = frame.f_back
        return found

    @classmethod
    def of_thread(cls, ident: int) -> _Stack:
        """Of a thread, as it is now."""
        return cls.of(sys._current_frames().get(ident))


def _in_lock(frame: FrameType | None) -> bool:
    """Whether a thread waits for a lock, or is about to have one back that it will give away.

    Raised in the latter, which takes no time, an error leaves a lock that isn't held, and giving that away is another.
    So who is found in a lock is asked again a second later.
    """
    return frame is not None and frame.f_globals.get("__name__") in ("threading", "multiprocessing.synchronize")


def _training() -> tuple[int, FrameType] | None:
    """The thread that is inside a trainer, and its run; the main thread if that is. Not all of TRL's threads train."""
    main = threading.main_thread().ident or 0
    if (run := _Stack.of_thread(main).run) is not None:
        return main, run
    runs = {ident: _Stack.of(frame).run for ident, frame in sys._current_frames().items()}
    trains = ((ident, run) for ident, run in runs.items() if run is not None and run.f_code.co_name == "train")
    return next(trains, None)


class _Signal:
    """How the main thread is told of an error: it raises it itself, in the signal's handler, out of any wait.

    Args:
        thread: The main thread.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread

    def tell(self) -> None:
        """Has it raise the error."""
        signal.pthread_kill(self._thread, SIGNAL)

    def free(self, waiting: FrameType) -> None:
        """Breaks off a wait for a process that is dead."""
        self.tell()


class _Exception:
    """How another thread is told of an error: Python takes a class there, and makes the instance itself.

    Args:
        thread: The thread.
        reason: The error; what is raised is of its kind, and says the same. Where a kind makes no instance of nothing
            (groups, pydantic's), it's an :class:`AgentEnvError` that says the same.
    """

    def __init__(self, thread: int, reason: Exception) -> None:
        self._thread = thread
        self._kind = self._like(reason)
        try:
            same = str(self._kind()) == str(reason)
        except TypeError:
            same = False
        if not same:
            told = AgentEnvError(describe(reason))
            told.__dict__.update(vars(reason))
            self._kind = self._like(told)
        self._raised = False

    def _like(self, reason: Exception) -> type[Exception]:
        kind = type(reason)

        def fill(error: Exception) -> None:
            self._raised = True
            error.__dict__.update(vars(reason))
            error.args = reason.args

        members = {"__init__": fill, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return type(kind.__name__, (kind,), members)

    def tell(self) -> None:
        """Raises it there, once, when the thread is next in Python."""
        if not self._raised:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(self._kind))

    def free(self, waiting: FrameType) -> None:
        """Ends a wait for a process that is dead, as that would have: none is broken off by an exception."""
        waits = waiting.f_locals["self"]
        with contextlib.suppress(ValueError):  # it has got it meanwhile
            _release(waits._woken_count if waiting.f_code.co_name == "notify" else waits)


def _release(lock: SemLock) -> None:
    """Gives away a lock that a dead process holds, a recursive one too, which refuses all but its holder.

    Raises:
        ValueError: Nobody holds it.
    """
    held: Any = lock._semlock  # type: ignore[attr-defined]  # its handle, by which processes share it
    plain = type(held)._rebuild(held.handle, SEMAPHORE, held.maxvalue, None)
    _released.append(plain)  # whose end would close the handle
    plain.release()


_released: list[object] = []


_watches: dict[int, Watch] = {}


def watch() -> Watch:
    """The watch of this process, which is armed if this is its main thread."""
    pid = os.getpid()  # a fork has a copy of the object, but neither its threads nor its rollouts
    if pid not in _watches:
        _watches[pid] = Watch()
    _watches[pid].arm()
    return _watches[pid]


def refuse_second_import() -> None:
    """Refuses what a spawned process does while it imports the trainer's script again.

    Raises:
        AgentEnvError: This is such a process; the message says what to mend.
    """
    # multiprocessing's own mark, by which it refuses to start processes at that time
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise AgentEnvError(
            "this script makes an AgentEnv whenever it's imported, and the rollout process that AsyncGRPOTrainer spawns"
            ' imports it again: put all that the script does beneath `if __name__ == "__main__":`'
        )


def _exit_code(process: BaseProcess) -> int:
    """The exit code of a process that has ended, as :mod:`multiprocessing` has it: negative for a signal."""
    for _ in range(100):
        code = process.exitcode
        if code is not None:
            return code
        time.sleep(0.05)  # its end of the channel closes before it's gone, and two threads may ask at once
    return 0


def _obituary(process: BaseProcess) -> str:
    code = _exit_code(process)
    who = f"the rollout process (pid {process.pid})"
    if code == -signal.SIGKILL:
        return (
            f"{who} was killed by SIGKILL; most often the kernel does that when memory runs out: see dmesg, and let"
            " fewer rollouts be in flight (max_inflight_tasks)"
        )
    if code < 0:
        return f"{who} was ended by {signal.Signals(-code).name}, and there are no rollouts without it"
    return f"{who} ended with exit status {code}; why stands among the messages above"


def _pickled(exc: Exception) -> bytes:
    """``exc`` for another process; empty when it can't travel."""
    try:
        data = pickle.dumps(exc)
        pickle.loads(data)  # noqa: S301  # our own bytes: an exception may pickle and not come back
    except Exception:
        return b""
    return data


def _rebuilt(pid: int, data: bytes, line: str, trace: str) -> Exception:
    exc: Exception = AgentEnvError(line)
    if data:
        with contextlib.suppress(Exception):  # of a module that only the other process has
            exc = pickle.loads(data)  # noqa: S301  # from a process that knows this one's key
    exc.add_note(f"In the rollout process (pid {pid}):\n{trace}".rstrip())
    return exc

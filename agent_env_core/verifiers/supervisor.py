"""Watches one verifier: keeps its deadline, bounds its output, and leaves nothing of it behind.

Runs in a process forked for it, between the warm worker and the verifier's own process. It is the reaper of all that a
verifier starts, so that even a daemon which moved to a session of its own is found and killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from agent_env_core.verifiers import runner, walls
from agent_env_core.verifiers.wire import HEADER, MAX_FRAME, pack, unpack

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_EVERY = 0.05
"""Seconds between two looks at whether a silent verifier still lives; its answer is noticed at once."""
TAIL = 2000
ANSWER = 3
"""The descriptor that a verifier's process answers on."""
MANY = 256
"""More descriptors than a warm worker ever holds."""


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def supervise(channel: socket.socket) -> NoReturn:
    """Takes one job from ``channel``, runs it, writes one frame, and ends the process."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    job = unpack(channel.recv)
    if job is None:
        os._exit(0)
    home = tempfile.mkdtemp(prefix="agent-env-verify-")
    try:
        reply = _supervised(job, home, channel)
        shutil.rmtree(home, ignore_errors=True)
        if reply is not None:
            channel.sendall(reply)
    except OSError:
        pass  # the server is gone: nobody is left to tell
    finally:
        shutil.rmtree(home, ignore_errors=True)
        os._exit(0)


def _supervised(job: Mapping[str, Any], home: str, channel: socket.socket) -> bytes | None:
    """The frame that tells what came of a job; None where the server doesn't want it any more."""
    said, say = os.pipe()
    answered, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become_verifier(home, say, answer)
            with open(ANSWER, "wb", closefd=False) as stream:
                runner.run(job, stream.write)
        finally:
            os._exit(0)
    os.close(say)
    os.close(answer)
    watch = _Watch(pid, said, answered, channel, job["timeout"])
    try:
        fault = watch.run()
    finally:
        _end_all(pid)
    if fault is None:
        return bytes(watch.answer)
    return None if fault == "" else pack({"fault": fault + watch.last_words(), "retryable": False})


def _become_verifier(home: str, output: int, answer: int) -> None:
    """A session, a folder and an output of its own, and nothing that belongs to others."""
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    walls.give_up_powers()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.dup2(answer, ANSWER, inheritable=False)
    os.closerange(ANSWER + 1, MANY)
    os.chdir(home)
    os.environ.update(HOME=home, TMPDIR=home)
    tempfile.tempdir = home


class _Watch:
    """Reads what a verifier prints and answers, until it answered, ended, ran out of time, or is not wanted."""

    def __init__(self, pid: int, said: int, answered: int, channel: socket.socket, timeout: float) -> None:
        self.answer = bytearray()
        self._tail = b""
        self._pid = pid
        self._said, self._answered, self._channel = said, answered, channel
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def run(self) -> str | None:
        """What went wrong; None when there is an answer, an empty text when the server hung up."""
        open_ends: set[int] = {self._said, self._answered, self._channel.fileno()}
        ended: str | None = None
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                return f"didn't return within {self._timeout:g}s"
            ready, _, _ = select.select(list(open_ends), [], [], 0.0 if ended else min(left, LOOK_EVERY))
            for end in ready:
                if end == self._channel.fileno():
                    return ""
                data = os.read(end, 65536)
                if not data:
                    open_ends.discard(end)
                elif end == self._said:
                    self._tail = (self._tail + data)[-TAIL:]
                else:
                    self.answer += data
            if self._complete():
                return None
            if not ready:
                if ended:  # and all that it wrote was read after its end was seen
                    return ended
                ended = self._exit()

    def _complete(self) -> bool:
        if len(self.answer) < HEADER.size:
            return False
        size = HEADER.unpack(self.answer[: HEADER.size])[0]
        return len(self.answer) >= HEADER.size + min(int(size), MAX_FRAME)

    def _exit(self) -> str | None:
        """How the verifier's process ended, once it has. It stays a zombie, so that its number stays its own."""
        status = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if status is None:
            return None
        if status.si_code == os.CLD_EXITED:
            return f"ended its process with exit code {status.si_status} before it returned"
        name = signal.Signals(status.si_status).name
        return f"was killed by {name} before it returned" + (" (out of memory?)" if name == "SIGKILL" else "")

    def last_words(self) -> str:
        """The end of what it printed, for a message."""
        text = " ".join(self._tail.decode(errors="replace").split())
        return f"; its output ended with: {text[-400:]}" if text else ""


def _end_all(pid: int) -> None:
    """Kills a verifier and everything it started. What it orphaned was handed to this process, so it is found here."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as listing:
            return [int(pid) for pid in listing.read().split()]
    except (OSError, ValueError):
        return []

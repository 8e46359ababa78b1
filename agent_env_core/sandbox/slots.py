"""Places that all processes of a user on this machine share.

A place is a file, and who holds it has it locked. The kernel drops a process's locks when it ends, however it ends, so
nothing here is ever cleaned up after. Who finds no place stands in a queue, which is a folder of such files: the first
in it that is alive takes the next place, and each process has one in it at a time. So a process with many callers and
one with few get on alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent_env_core.errors import ConfigError, Unavailable, describe, fix_for

FOLDER_VARIABLE = "AGENT_ENV_RUN_DIR"
STALE = 5.0
"""Seconds after which somebody in the queue who doesn't look any more (a stopped process) is passed by."""

T = TypeVar("T")

_numbers = itertools.count()


def run_folder() -> Path:
    """The folder that this user's processes share on this machine: a local one, gone after a restart.

    ``AGENT_ENV_RUN_DIR`` sets another. Neither ``TMPDIR`` nor ``XDG_RUNTIME_DIR`` does: batch systems give every job
    its own, and jobs of one machine are to share.

    Raises:
        ConfigError: It can't be made, is somebody else's, or has no file locks.
    """
    folder = Path(os.environ.get(FOLDER_VARIABLE) or f"/tmp/agent-env-{os.getuid()}")  # noqa: S108 - checked below
    fix = f"set {FOLDER_VARIABLE} to a local folder of yours"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as exc:
        raise ConfigError(f"the folder {folder} can't be used: {describe(exc)}; {fix}") from exc
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(f"{folder} is not a folder of yours; {fix}")
    try:
        if (descriptor := _lock(folder / "locks")) is not None:
            os.close(descriptor)
    except OSError as exc:  # some network file systems have none
        raise ConfigError(f"files in {folder} can't be locked: {describe(exc)}; {fix}") from exc
    return folder


class Slots:
    """Some places of one kind.

    Args:
        folder: Where they are; each kind has a folder of its own, below :func:`run_folder`.
        count: How many there are. A process that says less than others keeps to the first ones.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self._queue = folder / "queue"

    def take(self, ticket: Ticket | None = None) -> Slot | None:
        """A free place; None where there is none, or others have waited longer.

        Args:
            ticket: The caller's in the queue; without one it comes after everybody there.

        Raises:
            Unavailable: Files can't be opened here now.
        """
        try:
            if ticket is not None:
                ticket.touch()
            if self._others_first(ticket):
                return None
            for number in range(self.count):
                lock = partial(_lock, self.folder / f"slot-{number}")
                if (descriptor := _remaking(self.folder, lock)) is not None:
                    os.pwrite(descriptor, f"{os.getpid():<10}".encode(), 0)
                    return Slot(descriptor)
        except OSError as exc:
            raise self._unusable("no place can be taken", exc) from exc
        return None

    def holders(self) -> list[int]:
        """The processes that hold the places, where none is free: for people."""
        pids = set()
        for number in range(self.count):
            with contextlib.suppress(OSError, ValueError):
                pids.add(int((self.folder / f"slot-{number}").read_bytes()))
        return sorted(pids)

    def queue(self) -> Ticket:
        """A place in the queue; close it at the end.

        Raises:
            Unavailable: Files can't be opened here now.
        """
        try:
            return _remaking(self._queue, partial(Ticket, self._queue))
        except OSError as exc:
            raise self._unusable("nobody can queue", exc) from exc

    def wanted(self) -> bool:
        """Whether somebody on this machine waits for a place."""
        try:
            return self._others_first(None)
        except OSError:
            return False

    def _unusable(self, what: str, exc: OSError) -> Unavailable:
        fix = fix_for(exc, f"set {FOLDER_VARIABLE} to a local folder of yours")
        return Unavailable(f"{what} in {self.folder}: {describe(exc)}; {fix}")

    def _others_first(self, ticket: Ticket | None) -> bool:
        own = ticket.path.name if ticket is not None else None
        try:
            names = sorted(os.listdir(self._queue))
        except FileNotFoundError:
            return False
        for name in names:
            if name == own:
                return False
            if not name.startswith(".") and _waits(self._queue / name):
                return True
        return False


class Slot:
    """A place that is held. A child that was forked meanwhile has a copy of the file; :meth:`free` sees to that."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def free(self) -> None:
        """Gives it back. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class Ticket:
    """A place in a queue. Its file's time is the last sign of life, on the clock that no one sets."""

    def __init__(self, folder: Path) -> None:
        unique = f"{time.monotonic_ns():020}-{os.getpid()}-{next(_numbers)}"
        new, self.path = folder / f".{unique}", folder / unique
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.touch()
            os.rename(new, self.path)  # seen by others only now that it is locked
        except BaseException:
            os.close(self._descriptor)
            new.unlink(missing_ok=True)
            raise

    def touch(self) -> None:
        """Shows that its owner still looks."""
        now = time.monotonic_ns()
        os.utime(self._descriptor, ns=(now, now))

    def close(self) -> None:
        """Leaves the queue."""
        self.path.unlink(missing_ok=True)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


class Pace:
    """At most so many moments in a second, for all processes that name the same file.

    A stall builds up no claim: what wasn't used is lost.

    Args:
        path: The file.
        rate: Moments in a second.
    """

    def __init__(self, path: Path, rate: float) -> None:
        self._path, self._gap = path, 1.0 / rate

    def next(self) -> float:
        """Reserves the next moment; returns how many seconds off it is.

        Raises:
            Unavailable: The file can't be used now.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "a+", encoding="ascii") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                now = time.monotonic()
                moment = max(now, self._read(file.read(), now))
                file.seek(0)
                file.truncate()
                file.write(f"{moment + self._gap:.6f}")
                return moment - now
        except OSError as exc:
            raise Unavailable(f"{self._path} can't be used: {describe(exc)}") from exc

    def _read(self, text: str, now: float) -> float:
        try:
            moment = float(text)
        except ValueError:
            return now
        # A time from before the machine's last start means nothing now.
        return moment if moment - now < 3600 else now


def _remaking(folder: Path, work: Callable[[], T]) -> T:
    """Does what needs a folder, which is made where it is missing: what lies in ``/tmp`` is tidied away in time."""
    try:
        return work()
    except FileNotFoundError:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return work()


def _lock(path: Path) -> int | None:
    """Locks a file, made where it is missing; None where somebody has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _waits(path: Path) -> bool:
    """Whether the owner of a ticket is alive and still looks. The ticket of a dead one is removed."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return time.monotonic_ns() - os.fstat(descriptor).st_mtime_ns < STALE * 1e9
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)

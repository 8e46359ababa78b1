"""Finding and ending all processes of a sandbox, and no others.

A process belongs to a sandbox if it carries the sandbox's mark in its environment, or descends from (or shares the
session of) a process that is known by number *and* start time. Numbers are used again by the system, so a number alone
is never trusted, and a signal goes through a pidfd, which can't come to mean another process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from agent_env_core.sandbox.machine import process_is_dead, process_start

PATIENCE = 5.0
"""Seconds that killed processes may take to be gone."""

_LINUX = sys.platform.startswith("linux")


@dataclass(frozen=True)
class Known:
    """A process by number and start time."""

    pid: int
    start: str

    @classmethod
    def look(cls, pid: int) -> Known | None:
        """The process that has this number now."""
        start = process_start(pid)
        return cls(pid, start) if start is not None else None

    @property
    def alive(self) -> bool:
        """Whether it may still run; false only where it has certainly ended."""
        return not process_is_dead(self.pid, self.start)


@dataclass(frozen=True)
class _Row:
    pid: int
    parent: int
    session: int
    start: str
    ended: bool


def end_all(mark: str, *leaders: Known | None, patience: float = PATIENCE) -> list[int]:
    """Kills every process of a tree and waits until they are gone.

    Args:
        mark: ``NAME=value``, as it stands in the environment of each.
        leaders: Processes that the tree started from.
        patience: Seconds to go on.

    Returns:
        The numbers of processes that would not end.
    """
    ends, pause, found = time.monotonic() + patience, 0.001, members(mark, *leaders)
    while found and time.monotonic() < ends:
        for process in found:
            send(process, signal.SIGKILL)
        time.sleep(pause)  # a killed process takes a moment, and may have started another just before
        pause = min(2 * pause, 0.1)
        found = members(mark, *leaders)
    return [process.pid for process in found]


def end_namespace(holder: Known, *, patience: float = PATIENCE) -> None:
    """Ends all processes of a PID namespace by ending its first one, and waits until they are gone.

    Those that started them from outside are left: they collect their children and end by themselves. Without them
    it would fall to the machine's first process, and the namespace would last until that comes round to it.
    """
    ends, pause = time.monotonic() + patience, 0.001
    send(holder, signal.SIGKILL)
    while holder.alive and time.monotonic() < ends:
        time.sleep(pause)
        pause = min(2 * pause, 0.05)


def members(mark: str, *leaders: Known | None) -> list[Known]:
    """The running processes of a tree; see :func:`end_all`."""
    known = [leader for leader in leaders if leader is not None]
    if not _LINUX:
        return [leader for leader in known if leader.alive]
    rows = {row.pid: row for row in _rows()}
    chosen: set[int] = set()
    for leader in known:
        top = rows.get(leader.pid)
        if top is not None and top.start == leader.start:
            chosen.add(top.pid)
            chosen.update(row.pid for row in rows.values() if row.session == top.pid)
    needle = mark.encode()
    # nothing of a tree is older than what it started from, and a machine may run thousands of older processes
    oldest = min((int(leader.start) for leader in known), default=0)
    young = (row.pid for row in rows.values() if int(row.start) >= oldest and not row.ended)
    chosen.update(pid for pid in young if pid not in chosen and _marked(pid, needle))
    fresh = chosen
    while fresh:  # children that dropped the mark are known by their parents
        fresh = {row.pid for row in rows.values() if row.parent in fresh} - chosen
        chosen |= fresh
    chosen.discard(os.getpid())
    return [Known(pid, rows[pid].start) for pid in sorted(chosen) if not rows[pid].ended]


def send(process: Known, number: signal.Signals) -> None:
    """Sends a signal to exactly this process; nothing happens if it has ended."""
    try:
        if not hasattr(signal, "pidfd_send_signal"):
            _send_by_number(process, number)
            return
        pidfd = os.pidfd_open(process.pid)
        try:
            if process_start(process.pid) == process.start:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
    except OSError:  # ended, or not ours to signal: the next look tells
        return


def _send_by_number(process: Known, number: signal.Signals) -> None:
    """The same on systems without pidfds, which reaches the group of a leader: its members can't be looked up there."""
    if not process.alive:
        return
    if os.getpgid(process.pid) == process.pid:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)


def _rows() -> list[_Row]:
    rows = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            text = _read(f"/proc/{name}/stat")
        except OSError:  # ended while we looked
            continue
        fields = text.rpartition(b")")[2].split()
        ended = fields[0] in (b"Z", b"X", b"x")
        rows.append(_Row(int(name), int(fields[1]), int(fields[3]), fields[19].decode(), ended))
    return rows


def _read(path: str) -> bytes:
    """A small file of /proc, which one read brings whole; a file object would take twice the time, a thousand times."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _marked(pid: int, needle: bytes) -> bool:
    try:
        return needle in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or just ended
        return False

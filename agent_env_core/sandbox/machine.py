"""What this machine can say about itself and about its processes.

Everything that decides whether an owner is dead rests on this module, so each function says what it can't know: a
question without a sure answer is answered with the harmless value.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_LINUX = sys.platform.startswith("linux")
_ENDED = frozenset("ZXx")  # a zombie has ended; only its parent hasn't looked yet


@cache
def host_id() -> str:
    """A name for this machine as its processes see it: host name, then a digest.

    The digest covers the machine id and the PID namespace: two containers on one machine count as two hosts, since a
    process of one can't be looked up in the other. It is safe in a label of any provider (letters, digits, ``.-``).
    """
    name = socket.gethostname()
    parts = [name]
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            parts.append(Path(path).read_text().strip())
            break
        except OSError:
            continue
    try:
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        parts.append("one")  # no PID namespaces here
    safe = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.")[:20] or "host"
    return f"{safe}-{_digest(*parts)}"


@cache
def boot_id() -> str:
    """Changes with every start of the machine; ``unknown`` where the system doesn't say."""
    try:
        return _digest(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    except OSError:
        pass
    booted = _ask("sysctl", "-n", "kern.boottime")
    return _digest(booted) if booted else "unknown"


@dataclass(frozen=True)
class Memory:
    """Bytes of memory that processes can still be given, and that there are in all."""

    free: int
    total: int


def memory() -> Memory | None:
    """This machine's memory, or that of the control group this process is held to; None where the system doesn't tell.

    Linux only: ``/proc/meminfo``, and ``memory.max`` and ``memory.current`` of cgroup 2 as a container sees its own.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        found = Memory(kib["MemAvailable"] << 10, kib["MemTotal"] << 10)
    except (OSError, ValueError, KeyError, IndexError):
        return None
    try:
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no limit reads "max"
        return found
    return Memory(max(0, min(found.free, most - used)), min(found.total, most))


def process_start(pid: int) -> str | None:
    """When process ``pid`` started, as an opaque text that differs for a later process of the same number.

    Returns:
        None where the process can't be looked up: it ended, or the system doesn't tell.
    """
    if _LINUX:
        fields = _stat(pid)
        return fields[19] if fields else None
    started = _ask("ps", "-o", "lstart=", "-p", str(pid))
    return re.sub(r"[^A-Za-z0-9]+", "-", started) if started else None


def process_is_dead(pid: int, start: str) -> bool:
    """Whether the process that had number ``pid`` and started at ``start`` has certainly ended.

    False in every doubtful case: a process that may not be looked at is taken to be alive.
    """
    if not _exists(pid):
        return True
    fields = _stat(pid) if _LINUX else None
    if fields is not None and fields[0] in _ENDED and _threads(pid) <= 1:
        return True
    now = fields[19] if fields is not None else process_start(pid)
    return now is not None and now != start


def process_is_stopped(pid: int) -> bool:
    """Whether the process does nothing until somebody lets it go on; False where the system doesn't tell."""
    fields = _stat(pid) if _LINUX else None
    return fields is not None and fields[0] in "Tt"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError as exc:  # someone else's process
        return exc.errno != errno.ESRCH
    return True


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; the name before them may hold spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > 19 else None


def _threads(pid: int) -> int:
    """How many threads still run: a main thread may end, and show as a zombie, before the others."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _ask(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]

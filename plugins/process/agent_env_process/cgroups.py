"""Limits: each sandbox has a control group of its own, where this machine lets the server make one.

With version 1 that is one in each hierarchy, below the server's own. With version 2 it is one below the server's own
group, if that is the server's to divide. There a group that limits those below it may hold no process, so what the
server's group holds goes into another one first, beside those of the sandboxes.

Files and formats: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from agent_env_core.errors import Unavailable
from agent_env_core.sandbox.contract import Limit
from agent_env_process.procs import PATIENCE, Known, send

log = logging.getLogger(__name__)

WHAT = {"memory": "memory", "pids": "processes", "cpu": "cores"}
"""What each controller limits."""

ASKED: Mapping[Limit, str] = {"memory_mb": "memory", "cpu": "cpu"}
"""The controller of each limit that a sandbox may ask for."""

SERVER = "agent-env"
"""With version 2, the group of the server itself."""

PERIOD = 100_000
"""Microseconds over which the kernel counts a group's time on cores."""

SWAP = ("memory.memsw.limit_in_bytes", "memory.swap.max")
"""Files that aren't there where the kernel counts no swap."""


class _NotHere(Exception):
    """Why no groups can be made."""


@dataclass(frozen=True)
class Groups:
    """Where the groups of sandboxes are made.

    Attributes:
        version: Of Linux's control groups.
        parents: By controller, the group below which one is made; several may have the same.
        lacking: Why it isn't all of :data:`WHAT`.
    """

    version: int = 2
    parents: Mapping[str, Path] = field(default_factory=dict)
    lacking: str = ""

    @property
    def complete(self) -> bool:
        """Whether memory, processes and cores are limited."""
        return self.parents.keys() == WHAT.keys()

    @property
    def claimed(self) -> frozenset[Limit]:
        """What a sandbox may ask for."""
        return frozenset(limit for limit, controller in ASKED.items() if controller in self.parents)

    def folders(self, sandbox_id: str) -> tuple[str, ...]:
        """The groups that a sandbox of this id has."""
        return tuple(dict.fromkeys(str(parent / f"agent-env-{sandbox_id}") for parent in self.parents.values()))

    def make(self, sandbox_id: str, *, memory_mb: int, pids: int, cpus: float) -> None:
        """Makes them, empty.

        Args:
            sandbox_id: See :meth:`folders`.
            memory_mb: MiB, without swap on top.
            pids: Processes and threads.
            cpus: Cores; 0 sets no limit.

        Raises:
            OSError: They can't be made, or one of the limits can't be kept.
        """
        for folder in self.folders(sandbox_id):
            os.mkdir(folder)
        wanted = _limits(self.version, memory_mb << 20, pids, max(1000, int(cpus * PERIOD)) if cpus else 0)
        for controller, parent in self.parents.items():
            for name, value in wanted[controller].items():
                file = parent / f"agent-env-{sandbox_id}" / name
                if name in SWAP and not file.exists():
                    continue
                file.write_text(value)
                if file.read_text().strip() != value:
                    raise OSError(errno.EINVAL, f"the kernel makes {file.read_text().strip()} of {value}", str(file))

    def __str__(self) -> str:
        limited = [what for controller, what in WHAT.items() if controller in self.parents]
        others = [what for what in WHAT.values() if what not in limited]
        kept = f"{_listed(limited)} limited by control groups (v{self.version})" if limited else ""
        lost = f"{_listed(others)} not limited: {self.lacking}" if others else ""
        return "; ".join(filter(None, (kept, lost)))


@cache
def choose() -> Groups:
    """The groups that this process may make, found out by making one; it is logged which."""
    try:
        found = _find()
        _try(found)
    except (OSError, subprocess.SubprocessError, _NotHere) as exc:
        found = Groups(lacking=str(exc))
    log.log(logging.INFO if found.complete else logging.WARNING, "process: sandboxes have their %s", found)
    return found


def overrun(folders: Iterable[str]) -> str:
    """Says that the kernel ended something in a sandbox because of its limit of memory; empty where it didn't."""
    for folder in map(Path, folders):
        for events, limit in (("memory.events", "memory.max"), ("memory.oom_control", "memory.limit_in_bytes")):
            try:
                counts = dict(line.split() for line in (folder / events).read_text().splitlines())
                if int(counts.get("oom_kill", 0)):
                    mib = int((folder / limit).read_text()) >> 20
                    return f", after the sandbox ran out of memory (limit {mib} MiB)"
            except OSError:  # another version's, another controller's, or gone
                continue
    return ""


def hurry(folders: Iterable[str]) -> None:
    """Lifts the limit of cores, which would hold up the end of many processes."""
    for folder in map(Path, folders):
        for name, most in (("cpu.max", "max"), ("cpu.cfs_quota_us", "-1")):
            with contextlib.suppress(OSError):  # another version's, another controller's, or gone
                (folder / name).write_text(most)


def remove(folders: Iterable[str], *, patience: float = PATIENCE) -> None:
    """Ends what a sandbox's groups still hold, and removes them.

    Raises:
        Unavailable: One can't be removed.
    """
    ends, pause = time.monotonic() + patience, 0.001
    for folder in folders:
        while not _removed(folder):
            if time.monotonic() > ends:
                raise Unavailable(f"process: the control group {folder} can't be removed; remove it by hand")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)


def _removed(folder: str) -> bool:
    for inner, _, _ in os.walk(folder, topdown=False):
        try:
            for pid in _members(inner):
                process = Known.look(pid)
                if process is not None and pid in _members(inner):  # so it isn't another one of this number
                    send(process, signal.SIGKILL)
            os.rmdir(inner)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return not os.path.exists(folder)


def _members(group: str | Path) -> list[int]:
    return [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]


def _limits(version: int, memory: int, pids: int, quota: int) -> dict[str, dict[str, str]]:
    """By controller, what is written to which file, in order."""
    if version == 1:
        return {
            "memory": {"memory.limit_in_bytes": f"{memory}", "memory.memsw.limit_in_bytes": f"{memory}"},
            "pids": {"pids.max": f"{pids}"},
            "cpu": {"cpu.cfs_period_us": f"{PERIOD}", "cpu.cfs_quota_us": f"{quota}"} if quota else {},
        }
    return {
        "memory": {"memory.max": f"{memory}", "memory.swap.max": "0"},
        "pids": {"pids.max": f"{pids}"},
        "cpu": {"cpu.max": f"{quota} {PERIOD}"} if quota else {},
    }


def _find() -> Groups:
    if not sys.platform.startswith("linux"):
        raise _NotHere("control groups are Linux's")
    rows = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    own = {name: path for _, names, path in rows for name in names.split(",")}
    if "memory" not in own:
        return _unified(_place("cgroup2", "", own.get("", "/")))
    places = {name: _place("cgroup", name, own[name]) for name in WHAT if name in own}
    parents = {name: place for name, place in places.items() if os.access(place, os.W_OK)}
    return Groups(1, parents, "with version 1 only root may make control groups, and where /sys/fs/cgroup is writable")


def _place(kind: str, controller: str, path: str) -> Path:
    """Where a group of this process is mounted; its path is told as from the root of the hierarchy."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, about = line.partition(" - ")
        root, point = mount.split()[3:5]
        mounted, _, options = about.split(" ", 2)
        inner = os.path.relpath(path, root)
        if mounted == kind and controller in ("", *options.split(",")) and not inner.startswith(".."):
            return Path(point, inner)
    raise _NotHere(f"its own control group {path} isn't mounted")


def _unified(own: Path) -> Groups:
    """Version 2."""
    parent = own.parent if own.name == SERVER else own
    if own == parent and not _ours(own):
        user = "" if os.geteuid() == 0 else "--user "
        raise _NotHere(
            f"the control group {own} isn't this server's to divide; "
            f"start it by `systemd-run {user}--scope -p Delegate=yes …`"
        )
    offered = (parent / "cgroup.controllers").read_text().split()
    _hand_down(parent, [name for name in WHAT if name in offered])
    return Groups(2, {name: parent for name in WHAT if name in offered}, f"{parent} offers only {_listed(offered)}")


def _ours(group: Path) -> bool:
    """Whether nobody else divides a group: systemd, if it runs here, was told to keep out."""
    if not all(os.access(group / name, os.W_OK) for name in ("", "cgroup.procs", "cgroup.subtree_control")):
        return False
    if not os.path.isdir("/run/systemd/system"):
        return True
    manager = ["--user"] if "/user@" in str(group) else []
    ask = ["systemctl", *manager, "show", "--property=Delegate", "--value", group.name]
    return subprocess.run(ask, capture_output=True, check=False, timeout=10).stdout.strip() == b"yes"


def _hand_down(parent: Path, controllers: Iterable[str]) -> None:
    """Has a group limit those below it, moving what it holds out of the way."""
    words = " ".join(f"+{name}" for name in controllers)
    for _ in range(100):  # what it holds may start more meanwhile
        try:
            (parent / "cgroup.subtree_control").write_text(words)
            return
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
        (parent / SERVER).mkdir(exist_ok=True)
        for pid in _members(parent):
            try:
                (parent / SERVER / "cgroup.procs").write_text(f"{pid}")
            except ProcessLookupError:  # it ended
                continue
    raise _NotHere(f"{parent} holds processes that can't be moved")


def _try(groups: Groups) -> None:
    """Makes groups with limits, and a process join them."""
    name = f"try-{uuid.uuid4().hex}"
    folders = groups.folders(name)
    try:
        groups.make(name, memory_mb=64, pids=16, cpus=0.5)
        script = 'for each; do echo 0 > "$each/cgroup.procs" || exit 1; done; cat /proc/self/cgroup'
        argv = ["/bin/sh", "-c", script, "sh", *folders]
        done = subprocess.run(argv, capture_output=True, check=False, text=True, timeout=10)
        if done.stdout.count(name) < len(folders):
            raise _NotHere(f"no process could join a control group: {done.stderr.strip() or done.stdout}")
    finally:
        remove(folders)


def _listed(names: Iterable[str]) -> str:
    *most, last = [*names] or ["nothing"]
    return f"{', '.join(most)} and {last}" if most else last

"""A sandbox's namespaces: the commands that open them and that run something in them.

One process holds them and does nothing else. It is the first in its PID namespace, so its end is the end of everything
in there, whatever that has done to its environment, its session or its parents; and the kernel ends it with the process
that made the sandbox.
"""

from __future__ import annotations

import py_compile
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from agent_env_core.errors import Unavailable
from agent_env_process.mounts import Mount
from agent_env_process.procs import Known

HOSTNAME = "sandbox"
WAIT = "sleep 2147483647 <&- >&- 2>&- & echo ready; exec <&- >&- 2>&-; wait"
"""What a shell, the first process in there, does to keep namespaces open: it collects the orphans of other processes,
and holds no descriptor of this machine's, which they would get at through it."""

_HOLDER = re.compile(rb'"child-pid":\s*(\d+)')
_READY = re.compile(rb"^ready$", re.MULTILINE)


def _inside(groups: Sequence[str]) -> list[str]:
    """The command that runs ``inside.py`` in these control groups."""
    return [*_program(), "\n".join(groups)]


@cache
def _program() -> tuple[str, ...]:
    """The command that runs ``inside.py``: compiled here, once, since every command in a sandbox starts it."""
    source = Path(__file__).with_name("inside.py")
    program = getattr(sys, "_base_executable", sys.executable)
    try:
        compiled = py_compile.compile(str(source), doraise=True)
    except OSError:  # installed where this user can't write
        compiled = None
    return (program, "-I", "-S", compiled or str(source))


def run_command(argv: Sequence[str], groups: Sequence[str]) -> list[str]:
    """The command that runs ``argv`` in these control groups, without namespaces."""
    return [*_inside(groups), "run", *argv]


def hold_command(
    kind: str, root: Path, mounts: Iterable[Mount], *, user: bool, net: bool, groups: Sequence[str] = ()
) -> list[str]:
    """The command that opens namespaces and holds them; :func:`holder_pid` reads what it says.

    Args:
        kind: ``bubblewrap`` or ``namespace``.
        root: Becomes ``/``, writable.
        mounts: What lies over it, in order.
        user: In a user namespace, or by root's rights.
        net: With a network of its own.
        groups: The control groups that they belong to.
    """
    if kind == "namespace":
        words = [word for mount in mounts for word in (mount.kind, mount.source, mount.target)]
        return [*_inside(groups), "hold", str(root), "1" if user else "0", "1" if net else "0", HOSTNAME, WAIT, *words]
    command = [*_inside(groups), "tell", "bwrap", "--die-with-parent", "--new-session"]
    command += [
        "--as-pid-1",  # bubblewrap's own first process would be a program of this machine, mounted as that has it
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--hostname",
        HOSTNAME,
        "--cap-drop",
        "ALL",
        "--info-fd",
        "3",
    ]
    command += ["--unshare-user", "--uid", "0", "--gid", "0"] if user else []
    command += ["--unshare-net"] if net else []
    command += ["--bind", str(root), "/"]
    for mount in mounts:
        match mount.kind:
            case "readonly":
                command += ["--ro-bind", mount.source, mount.target]
            case "symlink":
                command += ["--symlink", mount.source, mount.target]
            case _:
                command += [f"--{mount.kind}", mount.target]
    return [*command, "--remount-ro", "/proc", "--", "/bin/sh", "-c", WAIT]


def holder_pid(said: bytes) -> int | None:
    """The process that holds the namespaces, once they are ready."""
    found = _HOLDER.search(said)
    return int(found[1]) if found is not None and _READY.search(said) else None


def enter_command(
    holder: Known, folder: str, argv: Sequence[str], *, pids: int = 0, groups: Sequence[str] = ()
) -> list[str]:
    """The command that runs ``argv`` in the namespaces of ``holder``, in ``folder`` there, and ends as it does.

    Args:
        holder: See :func:`holder_of`.
        folder: The working folder.
        argv: What to run.
        pids: How many processes and threads there may be then in the user namespace; 0 sets no limit.
        groups: The control groups that it belongs to.
    """
    return [*_inside(groups), "enter", str(holder.pid), holder.start, folder, str(pids), *argv]


def holder_of(said: bytes) -> Known:
    """The process that holds the namespaces.

    Raises:
        Unavailable: They could not be opened.
    """
    pid = holder_pid(said)
    known = Known.look(pid) if pid is not None else None
    if known is None:
        text = said.decode(errors="replace").strip()
        raise Unavailable(f"process: the namespaces of a sandbox could not be opened: {text or 'nothing was said'}")
    return known

"""Which isolation this machine allows, found out by trying it: once for each kind and process."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox.contract import Capabilities
from agent_env_process.cells import enter_command, hold_command, holder_pid
from agent_env_process.mounts import PROGRAMS, SYSTEM, Mount
from agent_env_process.procs import Known

log = logging.getLogger(__name__)

Kind = Literal["bubblewrap", "namespace", "none"]
KINDS: tuple[Kind, ...] = get_args(Kind)
AUTO: Final = "auto"

TRY_SECONDS = 10.0
"""A machine that needs longer to open a namespace isn't one to make hundreds on."""

_FIXES = {
    "bubblewrap": "install it (`apt install bubblewrap`, `dnf install bubblewrap`), or take isolation='auto'",
    "namespace": (
        "let users make namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container, its seccomp profile and masked /proc), "
        "or take isolation='auto'"
    ),
}


@dataclass(frozen=True)
class Isolation:
    """What keeps sandboxes apart here.

    Attributes:
        kind: ``bubblewrap`` and ``namespace`` give each its own files, processes and host name; ``none`` doesn't.
        user: Whether it has a user namespace: without one, root's own rights make the others.
        net: Whether a sandbox can be given a network of its own, with nothing in it.
        detail: For people: a version, or why it is no better.
    """

    kind: Kind
    user: bool = False
    net: bool = False
    detail: str = ""

    @property
    def private(self) -> bool:
        """Whether a sandbox has namespaces of its own."""
        return self.kind != "none"

    @property
    def counts_processes(self) -> bool:
        """Whether the kernel counts processes in each sandbox by itself: since Linux 5.14, and root's it never does."""
        return self.user and os.geteuid() != 0 and _linux() >= (5, 14)

    @property
    def capabilities(self) -> Capabilities:
        """What a provider can promise with it."""
        return Capabilities(
            isolation="namespace" if self.private else "none",
            build=True,
            network=frozenset({"open", "none"} if self.net else {"open"}),
            private_files=self.private,
            extend=True,
        )

    def __str__(self) -> str:
        if not self.private:
            return f"plain processes, {self.detail}" if self.detail else "plain processes"
        rights = "a user namespace" if self.user else "root's rights"
        return f"{self.detail}, by {rights}"


@cache
def choose(wanted: Kind | Literal["auto"] = AUTO) -> Isolation:
    """The isolation that the setting ``isolation`` means on this machine.

    Args:
        wanted: ``auto`` for the best there is, or one of :data:`KINDS`.

    Raises:
        ConfigError: This machine doesn't allow it; the message holds the fix.
    """
    if wanted == AUTO:
        failed = []
        for kind in KINDS[:-1]:
            found, why = _tried(kind)
            if found is not None:
                log.info("process: sandboxes have namespaces of their own: %s", found)
                return found
            failed.append(f"{kind}: {why}")
        log.warning("process: sandboxes share this machine's files and processes (%s)", "; ".join(failed))
        return Isolation("none", detail="; ".join(failed))
    if wanted == "none":
        return Isolation("none", detail="as the setting `isolation` asks")
    found, why = _tried(wanted)
    if found is None:
        raise ConfigError(f"process: isolation={wanted!r} can't be kept on this machine ({why}): {_FIXES[wanted]}")
    return found


@cache
def _tried(kind: Literal["bubblewrap", "namespace"]) -> tuple[Isolation | None, str]:
    """The kind as this machine allows it, or why it doesn't."""
    if not sys.platform.startswith("linux"):
        return None, "namespaces are Linux's"
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return None, "bwrap is not installed"
    why = ""
    for user in (True, False) if os.geteuid() == 0 else (True,):
        for net in (True, False):
            candidate = Isolation(kind, user, net, _version(kind))
            why = _attempt(candidate) or ""
            if not why:
                return candidate, ""
    return None, why


def _linux() -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", os.uname().release)[:2])


def _version(kind: str) -> str:
    if kind == "namespace":
        return "namespaces"
    done = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False, timeout=TRY_SECONDS)
    return done.stdout.strip() or "bubblewrap"


def _attempt(candidate: Isolation) -> str | None:
    """Opens a sandbox and runs a command in it; says what went wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="agent-env-") as folder:
        root = Path(folder) / "root"
        root.mkdir()
        command = hold_command(candidate.kind, root, _LITTLE, user=candidate.user, net=candidate.net)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            said = _until_ready(process)
            holder = holder_pid(said)
            known = Known.look(holder) if holder else None
            if known is None:
                return _last(said)
            done = subprocess.run(
                enter_command(known, "/", ["/bin/sh", "-c", _WALLS]),
                capture_output=True, check=False, timeout=TRY_SECONDS,
            )  # fmt: skip
            return None if done.returncode == 0 else _last(done.stderr) or "its walls don't hold"
        except (OSError, subprocess.SubprocessError) as exc:
            return str(exc)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


_LITTLE = (
    *(Mount("readonly", path, os.path.realpath(path)) for path in PROGRAMS if os.path.exists(path)),
    *SYSTEM,
)
"""Enough to run a program."""

_WALLS = """
test ! -e /home && test ! -w /usr || exit 1
for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/self/comm; do test ! -w $file || exit 1; done
! chmod 666 /dev/null 2>&-
"""
"""Looks whether the machine is out of reach. Should it not be, nothing is changed but a mode, to what it is anyway."""


def _until_ready(process: subprocess.Popen[bytes]) -> bytes:
    said, ends = b"", time.monotonic() + TRY_SECONDS
    assert process.stdout is not None
    while holder_pid(said) is None and time.monotonic() < ends:
        if not select.select([process.stdout], [], [], 0.5)[0]:
            continue
        with contextlib.suppress(OSError):
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                break
            said += piece
    return said


def _last(said: bytes) -> str:
    lines: Sequence[str] = said.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("agent-env: ").removeprefix("bwrap: ") if lines else "it said nothing"

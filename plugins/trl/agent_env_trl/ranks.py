"""One local server for all training processes of a node.

torchrun and accelerate start a process for each rank, and each runs the same script. Local rank 0 starts the server;
the others find it through a folder that only their user can read, named after the run. What holds the server up is a
named pipe in it: every rank keeps the writing end open, and the server ends when the last has closed it, however that
came about.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import select
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_env_core.errors import AgentEnvError
from agent_env_core.sandbox.slots import run_folder

APPEAR_SECONDS = 300.0
"""How much later than another rank local rank 0 may get to its ``AgentEnv.local``."""
POLL_SECONDS = 0.05
RUN = (
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
)  # fmt: skip
"""The variables that are equal in all ranks of a run, and differ between two that go on at the same time."""
AGENT = "TORCHELASTIC_RUN_ID"
"""Set where torchrun's agent started the ranks, as ``accelerate launch`` has it do too."""

_calls = itertools.count()


class Meeting:
    """Where the ranks of a node meet for one ``AgentEnv.local``: each makes theirs in the same order.

    Args:
        folder: The folder to meet in.
        first: Whether this is the rank that starts the server.
    """

    def __init__(self, folder: Path, *, first: bool) -> None:
        self.first = first
        self.folder = folder
        self._members: int | None = None

    @classmethod
    def of_this_run(cls, environ: Mapping[str, str] = os.environ) -> Meeting | None:
        """The next meeting of this process; None when no other process of the run is on this node."""
        if int(environ.get("LOCAL_WORLD_SIZE") or 1) < 2 or "LOCAL_RANK" not in environ:
            return None
        agent = _launcher(environ) if AGENT in environ else None
        run = json.dumps([*(environ.get(name) for name in RUN), agent, next(_calls)])
        name = hashlib.sha256(run.encode()).hexdigest()[:24]
        return cls(run_folder() / "ranks" / name, first=environ["LOCAL_RANK"] == "0")

    # -- the rank that starts the server

    def lifeline(self) -> tuple[int, int]:
        """Opens the meeting; returns the pipe's reading end, which is for the server, and the writing end."""
        shutil.rmtree(self.folder, ignore_errors=True)  # a run that was killed left it, and its server has ended
        self.folder.mkdir(parents=True, mode=0o700)
        pipe = self.folder / "lifeline"
        os.mkfifo(pipe, 0o600)
        theirs = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        ours = os.open(pipe, os.O_WRONLY)
        self._members = _join(self.folder / "members")
        return theirs, ours

    def announce(self, url: str, token: str, pid: int) -> None:
        """Tells the other ranks where the server is."""
        draft = self.folder / "draft"
        with open(draft, "w", encoding="utf-8", opener=_private) as file:
            json.dump({"url": url, "token": token, "pid": pid}, file)
        draft.rename(self.folder / "server")

    def leave(self) -> bool:
        """Closes the meeting to newcomers; returns whether nobody else is at it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._members is None:
            return True
        try:
            fcntl.flock(self._members, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(self._members)
            self._members = None
        return True


class SharedServer:
    """The server that local rank 0 started, as another rank holds it. Making one waits until it's ready.

    Args:
        meeting: Where that rank tells of it.

    Raises:
        AgentEnvError: Local rank 0 couldn't start it, or never did.
    """

    def __init__(self, meeting: Meeting) -> None:
        self._held = contextlib.ExitStack()
        self._pid = os.getpid()
        try:
            told = self._meet(meeting.folder)
        except BaseException:
            self._held.close()
            raise
        self.url: str = told["url"]
        self.token: str = told["token"]
        self.pid: int = told["pid"]

    def _meet(self, folder: Path) -> dict[str, Any]:
        pipe = self._appeared(folder)
        ended = select.poll()
        ended.register(pipe, 0)
        while True:
            if (told := _announced(folder)) is not None:
                return told
            if ended.poll(POLL_SECONDS * 1000):
                raise AgentEnvError(
                    "the local server, which local rank 0 starts for all ranks of this node, couldn't be started: its"
                    " message is among that rank's"
                )

    def _appeared(self, folder: Path) -> int:
        """Waits for the meeting; returns our end of the pipe."""
        deadline = time.monotonic() + APPEAR_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # nothing there yet, or what a dead run left: nobody reads that pipe
                pipe = os.open(folder / "lifeline", os.O_WRONLY | os.O_NONBLOCK)
                self._held.callback(os.close, pipe)
                self._held.callback(os.close, _join(folder / "members"))
                return pipe
            self._held.close()
            time.sleep(POLL_SECONDS)
        raise AgentEnvError(
            f"local rank 0 started no local server within {APPEAR_SECONDS:g}s, and the other ranks of a node share it:"
            " call AgentEnv.local in every rank, in the same order; or serve the bundle with agent-env serve, and give"
            " every rank its url"
        )

    def close(self) -> None:
        """Lets go of the server, which ends when the last rank has. Idempotent."""
        if os.getpid() == self._pid:
            self._held.close()


def _launcher(environ: Mapping[str, str]) -> str | None:
    """The process that started the ranks of a run on this node: its id, and when it began, in ticks since the boot.

    A run that was killed may leave ranks behind that hang and hold their server, and the next run has the same port and
    torchrun's run id ``none``; this tells the two apart. Between the agent and a rank there may be scripts, which have
    the rank's own variables: the launcher is the first ancestor that hasn't.

    Returns:
        None where there's no ``/proc`` to see it in; the variables must do then.
    """
    process = Path("/proc/self")
    with contextlib.suppress(OSError):
        while (parent := _stat(process)[1]) != "0":
            process = process.with_name(parent)
            if not _is_of_rank(process, environ):
                return f"{parent} {_stat(process)[19]}"
    return None


def _stat(process: Path) -> list[str]:
    """What Linux says of a process (proc_pid_stat(5)) from its state on: 1 is its parent, 19 when it began."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _is_of_rank(process: Path, environ: Mapping[str, str]) -> bool:
    """Whether a process was started with the variables of a rank; one that we may not look at wasn't."""
    try:
        given = (process / "environ").read_bytes().split(b"\0")
    except PermissionError:
        return False
    return all(f"{name}={environ.get(name)}".encode() in given for name in ("RANK", "LOCAL_RANK", AGENT))


def _announced(folder: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads((folder / "server").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return told


def _join(path: Path) -> int:
    """Opens the file whose shared lock every rank holds that is at a meeting."""
    members = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(members, fcntl.LOCK_SH)
    return members


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

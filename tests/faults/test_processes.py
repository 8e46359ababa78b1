"""Faults of processes and of the machine, on real servers: kills, stops, few open files, a full disk, neighbours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from agent_env_core.sandbox.leases import OWNER_LABEL, Owner
from agent_env_core.sandbox.machine import boot_id, host_id, process_start
from chaos.served import Gate, Server, episode, server

pytestmark = [pytest.mark.long, pytest.mark.timeout(400), pytest.mark.usefixtures("no_processes_left")]

KINDS = ["process", pytest.param("docker", marks=pytest.mark.docker)]
TRAINER = ("sh", "-c", '"$@"; exit $?', "sh")
"""Starts a server as its child, and waits for it, as a trainer does."""


class Trainer:
    """A trainer, its server, and all that the server made here."""

    def __init__(self, started: Server, containers_of: Callable[[Owner], list[str]]) -> None:
        self.process = psutil.Process(started.process.pid)
        (self.server,) = self.process.children()
        pid = self.server.pid
        self._containers = partial(containers_of, Owner(host_id(), boot_id(), pid, process_start(pid) or "unknown"))

    def left(self) -> list[str]:
        """What is left of the server: processes below it, containers."""
        left = self._containers()
        for process in self.below:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline()))
        return left

    def look(self) -> None:
        """Remembers what there is now, with the reaper, which goes last."""
        self.below = [self.server, *self.server.children(recursive=True)]

    def gone_within(self, seconds: float) -> list[str]:
        """What is left at that time; empty as soon as nothing is."""
        ends = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < ends:
            time.sleep(0.1)
        return left


@pytest.fixture
def containers_of(request: pytest.FixtureRequest) -> Callable[[Owner], list[str]]:
    """The ids of a server's containers, where the test at hand uses Docker."""
    if "docker" not in request.node.callspec.params.values():
        return lambda owner: []
    listed = request.getfixturevalue("containers_with")
    return lambda owner: list(listed(f"{OWNER_LABEL}={owner}"))


@pytest.fixture
def orphans() -> Iterator[list[psutil.Process]]:
    """The servers whose trainers a test kills: those that a failed test leaves are ended. No others' are touched."""
    servers: list[psutil.Process] = []
    yield servers
    for process in servers:
        with contextlib.suppress(psutil.Error):
            process.kill()


@pytest.mark.parametrize("sandbox", KINDS)
@pytest.mark.parametrize("fault", ["both killed", "server stopped"])
async def test_a_killed_trainer(
    sandbox: str, fault: str, containers_of: Callable[[Owner], list[str]], orphans: list[psutil.Process]
) -> None:
    """Killed with its server, or beside a server that is stopped (SIGSTOP), which its reaper wakes: gone in 60 s."""
    with server(sandbox, through=TRAINER) as started:
        started.ready()
        trainer = Trainer(started, containers_of)
        orphans.append(trainer.server)
        gate = Gate(4)
        playing = [asyncio.create_task(episode(started.url, pause=gate, patience=90)) for _ in range(4)]
        await gate.all_there()
        trainer.look()
        assert len(trainer.left()) > 4
        trainer.server.send_signal(signal.SIGSTOP)
        trainer.process.kill()
        if fault == "both killed":
            trainer.server.kill()
        assert await asyncio.to_thread(trainer.gone_within, 60) == []
        gate.open()
        ends = await asyncio.gather(*playing)
    assert [(end.reward, end.wrong) for end in ends] == [(None, "")] * 4


@pytest.mark.parametrize("sandbox", KINDS)
async def test_two_runs_side_by_side_one_of_which_is_killed(sandbox: str) -> None:
    with server(sandbox) as one, server(sandbox) as other:
        for started in (one, other):
            started.ready()
        doomed, gate = Gate(4), Gate(4)
        lost = [asyncio.create_task(episode(one.url, pause=doomed)) for _ in range(4)]
        kept = [asyncio.create_task(episode(other.url, pause=gate)) for _ in range(4)]
        await doomed.all_there()
        await gate.all_there()
        left = psutil.Process(one.process.pid).children(recursive=True)
        one.process.kill()
        doomed.open()
        assert [(end.reward, end.kind) for end in await asyncio.gather(*lost)] == [(None, "socket")] * 4
        _, alive = await asyncio.to_thread(psutil.wait_procs, left, 60)  # with its reaper, which goes when all is done
        assert alive == []
        gate.open()
        later = [asyncio.create_task(episode(other.url)) for _ in range(4)]
        assert [end.reward for end in await asyncio.gather(*kept, *later)] == [1.0] * 8


async def test_32_sessions_where_256_files_may_be_open() -> None:
    """The soft limit is the server's to raise."""
    with server("process", sessions=32, through=("sh", "-c", 'ulimit -S -n 256; exec "$@"', "sh")) as started:
        started.ready()
        gate = Gate(32)
        playing = [asyncio.create_task(episode(started.url, pause=gate)) for _ in range(32)]
        await gate.all_there()
        gate.open()
        assert [end.reward for end in await asyncio.gather(*playing)] == [1.0] * 32


def test_32_sessions_where_no_more_than_256_files_may_be_open() -> None:
    with server("process", sessions=32, through=("sh", "-c", 'ulimit -n 256; exec "$@"', "sh")) as started:
        with pytest.raises(RuntimeError, match="ulimit -n 384"):
            started.ready()
        assert started.process.wait(60) == 1


def why_no_small_disk() -> str:
    """Why this machine gives us none; empty where it does."""
    try:
        made = subprocess.run([*SMALL, "/tmp", "true"], capture_output=True, text=True, check=False)
    except OSError as exc:
        return str(exc)
    return made.stderr if made.returncode else ""


SMALL = ["unshare", "--mount", "sh", "-ec",
         'mount -t tmpfs -o size=256k tmpfs "$0"; head -c 1m /dev/zero > "$0/fill" 2>&- || exec "$@"']  # fmt: skip
"""Puts a full disk at the folder that is its next argument, for the command that follows, and for nobody else."""


@pytest.mark.parametrize("what", ["XDG_STATE_HOME", "AGENT_ENV_RUN_DIR", "TMPDIR", "--out"])
def test_a_full_disk(what: str, tmp_path: Path) -> None:
    """``agent-env run`` where one of the places it writes to is full: it works without, or it says which and why."""
    if why := why_no_small_disk():
        pytest.skip(f"no small disk can be made here: {why}")
    full, out = tmp_path / "full", tmp_path / "out"
    full.mkdir()
    command = [*SMALL, str(full), sys.executable, "-m", "agent_env_core.cli", "run", "hello", "--sandbox", "process"]
    command += ["--out", str(full / "out" if what == "--out" else out)]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), **({} if what == "--out" else {what: str(full)})}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    rows = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()] if out.exists() else []
    if done.returncode == 0:
        assert sorted(row["scores"]["grade"] for row in rows) == [0.75, 1.0]
    else:
        assert {row["outcome"] for row in rows} <= {"failed"}
        assert "No space left on device" in said
        assert str(full) in said
        assert "free some space" in said

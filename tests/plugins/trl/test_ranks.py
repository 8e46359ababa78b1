"""The ranks of a node share one local server, which ends with the last of them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_env_trl import ranks
from agent_env_trl.ranks import Meeting, SharedServer
from waiting import ended

from agent_env_core.errors import AgentEnvError

RANK = """
import json, sys
from agent_env.training.trl import AgentEnv

env = AgentEnv.local(sys.argv[1], sandbox="process", split="train", max_concurrent_envs=2)
environment = env.factory()
print(json.dumps({"server": env._local.pid, "url": env.url, "sessions": env.info.max_concurrent_envs}), flush=True)
for line in sys.stdin:
    if line == "play\\n":
        environment.reset(**env.dataset[0])
        environment.add(amount=3)
        print(json.dumps(environment.get_reward()), flush=True)
    else:
        env.close()
        print(json.dumps("closed"), flush=True)
"""


class Rank:
    """A training process, which does as it's told."""

    def __init__(self, bundle: Path, rank: int, port: int) -> None:
        env = {**os.environ, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": str(port)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK, str(bundle)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )

    def told(self) -> Any:
        return json.loads(self.process.stdout.readline())

    def do(self, what: str) -> Any:
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.told()

    def end(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=60)
        self.process.kill()


@pytest.fixture
def start(one_toolset: Path) -> Iterator[Callable[..., Rank]]:
    """Starts a rank; the argument after it tells runs apart, as torchrun's port does."""
    started: list[Rank] = []

    def rank(number: int, port: int = 29500) -> Rank:
        started.append(Rank(one_toolset, number, port))
        return started[-1]

    yield rank
    for one in started:
        one.end()


def gone(pid: int, seconds: float = 60) -> bool:
    """Whether a process has ended, or does within a while."""
    deadline = time.monotonic() + seconds
    while not ended(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
@pytest.mark.usefixtures("no_processes_left")
def test_two_ranks_one_server_that_ends_with_the_last(start: Callable[..., Rank]) -> None:
    second, first = start(1), start(0)
    told = first.told()
    assert second.told() == told
    assert told["sessions"] == 2
    assert [first.do("play"), second.do("play")] == [1.0, 1.0]
    assert first.do("close") == "closed"
    first.end()
    assert second.do("play") == 1.0
    assert psutil.pid_exists(told["server"])
    assert second.do("close") == "closed"
    assert gone(told["server"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_processes_left")
def test_ranks_that_are_killed_and_a_run_after_them(start: Callable[..., Rank]) -> None:
    killed = [start(0), start(1)]
    server = killed[0].told()["server"]
    assert killed[1].told()["server"] == server
    for rank in killed:
        rank.process.send_signal(signal.SIGKILL)
    after = [start(1), start(0)]  # on the same port, at once
    told = [rank.told() for rank in after]
    assert told[0] == told[1]
    assert told[0]["server"] != server
    assert after[0].do("play") == 1.0
    assert gone(server)


def test_a_run_alone_on_its_node_meets_nobody() -> None:
    for environ in ({}, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "2"}):
        assert Meeting.of_this_run(environ) is None


def test_runs_and_calls_meet_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(**changed: str) -> Path:
        monkeypatch.setattr(ranks, "_calls", iter([0]))
        meeting = Meeting.of_this_run({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "1", **changed})
        assert meeting is not None
        return meeting.folder

    one = folder()
    assert folder(LOCAL_RANK="1") == one
    assert len({one, folder(MASTER_PORT="2"), folder(TORCHELASTIC_RESTART_COUNT="1"), folder(SLURM_JOB_ID="7")}) == 4
    monkeypatch.setattr(ranks, "_calls", iter([1]))
    second = Meeting.of_this_run({"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "1"})
    assert second is not None
    assert second.folder != one


AGENT = """
import os, subprocess, sys
code = "import os; from agent_env_trl.ranks import Meeting; print(Meeting.of_this_run(os.environ).folder)"
variables = {"TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"}
script = ["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, code]
for rank, command in enumerate(([sys.executable, "-c", code], script)):
    subprocess.run(command, env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}, check=True)
"""


def test_ranks_of_another_launcher_meet_apart_on_the_same_port() -> None:
    """As after a run whose agent was killed and whose ranks hang; the second rank has a script around it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "LOCAL_"))}
    runs = [
        subprocess.run([sys.executable, "-c", AGENT], capture_output=True, text=True, check=True, env=clean).stdout
        for _ in range(2)
    ]
    (one, same), (other, again) = (run.splitlines() for run in runs)
    assert (one, other) == (same, again)
    assert one != other


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    """A meeting that local rank 0 is to open."""
    return Meeting(tmp_path / "ranks" / "run", first=True)


def test_only_its_user_reads_the_token(meeting: Meeting) -> None:
    ends = meeting.lifeline()
    meeting.announce("http://127.0.0.1:1", "secret", 7)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (meeting.folder, *meeting.folder.iterdir())}
    assert modes == {"run": 0o700, "lifeline": 0o600, "members": 0o600, "server": 0o600}
    other = SharedServer(meeting)
    assert (other.url, other.token, other.pid) == ("http://127.0.0.1:1", "secret", 7)
    assert not meeting.leave()
    assert not meeting.folder.exists()
    other.close()
    other.close()
    for end in ends:
        os.close(end)


def test_a_server_that_could_not_be_started_is_told_to_all(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = meeting.lifeline()
    calls = iter([lambda: os.close(theirs)])

    def announced(folder: Path) -> None:
        next(calls, lambda: None)()

    monkeypatch.setattr(ranks, "_announced", announced)
    with pytest.raises(AgentEnvError, match="couldn't be started: its message is among that rank's"):
        SharedServer(meeting)
    os.close(ours)
    meeting.leave()


def test_what_a_dead_run_left_is_waited_past(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in meeting.lifeline():
        os.close(end)
    meeting.announce("http://127.0.0.1:1", "secret", 7)
    monkeypatch.setattr(ranks, "APPEAR_SECONDS", 0.2)
    with pytest.raises(AgentEnvError, match=r"call AgentEnv\.local in every rank, in the same order"):
        SharedServer(meeting)
    assert meeting.leave()

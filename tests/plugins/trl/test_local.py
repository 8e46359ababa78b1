"""The local server ends, with all it deployed, in every way its trainer can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import ended

from agent_env_core.errors import AgentEnvError

TRAINER = """
import json, os, sys, time
from agent_env.training.trl import AgentEnv

env = AgentEnv.local(sys.argv[1], sandbox="docker" if "docker" in sys.argv else "process", split="train",
                     max_concurrent_envs=16)
environments = [env.factory() for _ in range(16 if "sixteen" in sys.argv else 2)]
for environment in environments:
    environment.reset(**env.dataset[0])
    environment.add(amount=1)
if "fork" in sys.argv:  # a data loader's worker, say: it has every descriptor of its parent
    if os.fork() == 0:
        time.sleep(600)
print(json.dumps({"server": env._local.pid, "url": env.url}), flush=True)
if "inside" in sys.argv:
    with env:
        sys.stdin.readline()
sys.stdin.readline()
if "raise" in sys.argv:
    raise RuntimeError("as in a reward function")
if "with" in sys.argv:
    with env:
        pass
    assert not os.path.exists(f"/proc/{env._local.pid}")
"""


class Trainer:
    """A trainer's process, with two episodes under way on its local server."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        told = json.loads(process.stdout.readline())
        self.url = told["url"]
        self.server = psutil.Process(told["server"])
        self.below = {self.server, *self.server.children(recursive=True)}

    @property
    def envs(self) -> list[str]:
        """The env servers that run, without what started each in its namespaces."""
        commands = [command.split() for command in self.left()]
        return [" ".join(words) for words in commands if "server.py" in words and "enter" not in words]

    def go_on(self) -> int:
        self.process.communicate("\n", timeout=60)
        return self.process.returncode

    def left(self) -> list[str]:
        """What still runs of the server and everything below it."""
        commands = []
        for process in self.below:
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    commands.append(" ".join(process.cmdline()))
        return commands

    def all_gone(self, seconds: float = 60) -> bool:
        deadline = time.monotonic() + seconds
        while self.left():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@pytest.fixture
def trainer(one_toolset: Path) -> Iterator[Callable[..., Trainer]]:
    processes: list[subprocess.Popen[str]] = []

    def start(*how: str) -> Trainer:
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", TRAINER, str(one_toolset), *how]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        processes.append(process)
        return Trainer(process)

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("how", ["", "raise", "with"])
def test_a_trainer_that_ends_by_itself(trainer: Any, how: str) -> None:
    started = trainer(how)
    assert len(started.envs) == 2
    assert started.go_on() == (1 if how == "raise" else 0)
    assert started.left() == []  # it waited for the end


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_trainer_that_is_killed(trainer: Any, number: int) -> None:
    started = trainer()
    assert len(started.envs) == 2
    started.process.send_signal(number)
    started.process.wait(60)
    assert started.all_gone(), started.left()


def test_trainer_and_server_killed_together(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what no episode has taken yet."""
    monkeypatch.setenv("AGENT_ENV_WARM", "1")
    started = trainer()
    assert len(started.envs) >= 2
    os.kill(started.server.pid, signal.SIGSTOP)  # so that neither can do anything more
    started.process.kill()
    started.server.kill()
    started.process.wait(60)
    assert started.all_gone(60), started.left()


def test_a_killed_trainer_whose_fork_lives_on(trainer: Any) -> None:
    started = trainer("fork")
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait(60)
    assert started.all_gone(), started.left()


@pytest.mark.docker
def test_a_killed_trainer_leaves_no_container(trainer: Any) -> None:
    import docker

    client = docker.from_env()

    def containers(server: psutil.Process) -> list[str]:
        found = client.containers.list(all=True, filters={"label": "agent-env.owner"}, ignore_removed=True)
        return [one.id for one in found if f":{server.pid}:" in one.labels["agent-env.owner"]]

    try:
        started = trainer("docker")
        assert len(containers(started.server)) == 2
        started.process.kill()
        started.process.wait(60)
        assert started.all_gone(60), started.left()
        assert containers(started.server) == []
    finally:
        client.close()


@pytest.mark.parametrize(("how", "rollouts"), [("", 2), pytest.param("sixteen", 16, marks=pytest.mark.long)])
def test_a_trainer_interrupted_by_its_user(trainer: Any, how: str, rollouts: int) -> None:
    started = trainer(how)
    assert len(started.envs) == rollouts
    started.process.send_signal(signal.SIGINT)
    started.process.wait(60)
    assert started.process.returncode == -signal.SIGINT
    assert started.left() == []


def test_a_trainer_interrupted_again(trainer: Any) -> None:
    """While its first interrupt is being met, by a server that will never end by itself: it doesn't wait for it."""
    started = trainer("inside")
    os.kill(started.server.pid, signal.SIGSTOP)
    ends = time.monotonic() + 30
    while started.process.poll() is None and time.monotonic() < ends:
        started.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            started.process.wait(1)
    assert started.process.returncode == -signal.SIGINT
    assert started.all_gone(), started.left()


def test_a_server_that_is_killed_leaves_rollouts_unscored(local: Any, caplog: Any) -> None:
    env = local()
    environment = env.factory()
    environment.reset(**env.dataset[0])
    environment.add(amount=1)
    below = psutil.Process(env._local.pid).children(recursive=True)
    os.kill(env._local.pid, signal.SIGKILL)
    began = time.monotonic()
    assert environment.get_reward() is None
    assert time.monotonic() - began < 30  # it is noticed: a call may take 60 s
    assert f"rollout left unscored: the connection to {env.url} was lost" in caplog.text
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive, "the reaper left what the server had deployed"


def test_closing_is_idempotent_and_ends_what_the_environments_hold(local: Any) -> None:
    env = local()
    environment = env.factory()
    environment.reset(**env.dataset[0])
    environment.add(amount=1)
    server = psutil.Process(env._local.pid)
    below = [server, *server.children(recursive=True)]
    env.close()
    env.close()
    assert all(map(ended, below))
    assert environment.get_reward() is None
    with pytest.raises(AgentEnvError, match="was closed, and its server with it"):
        environment.reset(**env.dataset[0])
    with pytest.raises(AgentEnvError, match=f"^this AgentEnv was closed, and its server at {env.url} with it: make a"):
        env.dataset_for("eval")


def test_two_servers_side_by_side(local: Any) -> None:
    envs = [local(max_concurrent_envs=2), local(max_concurrent_envs=3)]
    assert envs[0].url != envs[1].url
    environments = [env.factory() for env in envs]
    for environment, env, amount in zip(environments, envs, (3, 2), strict=True):
        environment.reset(**env.dataset[0])
        environment.add(amount=amount)
    rewards = [environment.get_reward() for environment in environments]
    assert rewards[0] == 1.0
    assert rewards[1] != 1.0
    assert [env.info.max_concurrent_envs for env in envs] == [2, 3]


def test_a_bundle_is_a_folder_here_or_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from agent_env_trl.local import _bundle_arguments

    (tmp_path / "plays").mkdir()
    monkeypatch.chdir(tmp_path)
    assert _bundle_arguments("plays") == [f"{tmp_path}/plays"]
    assert _bundle_arguments("hello") == ["hello"]
    assert _bundle_arguments({"train": "plays", "eval": "hello"}) == [
        "--split", f"train={tmp_path}/plays", "--split", "eval=hello",
    ]  # fmt: skip

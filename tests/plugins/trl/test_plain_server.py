"""``AgentEnv(url)`` on a server of somebody else's, written with stock ``openenv`` alone."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv
from agent_env_trl.environment import ToolFailure

from agent_env_core.client import ForeignTools
from agent_env_core.errors import AgentEnvError, CapacityError
from agent_env_core.plugins import plugins

SERVER = Path(__file__).with_name("plain_server.py")


@contextmanager
def serving(*arguments: str) -> Iterator[str]:
    with subprocess.Popen([sys.executable, str(SERVER), *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture
def env(url: str) -> Iterator[AgentEnv]:
    with AgentEnv(url, split="train") as found:
        yield found


def test_rows_are_its_tasks(env: AgentEnv) -> None:
    assert env.info.plain
    assert dict(env.info.splits) == {"train": 2, "test": 1}
    first, second = env.dataset
    prompt = [{"role": "user", "content": "Find a number below 5."}]
    assert first == {"prompt": prompt, "split": "train", "index": 0, "task_id": "low"}
    assert (second["task_id"], second["prompt"][0]["content"]) == ("train-1", "")
    assert len(env.dataset_for("test")) == 1


def test_tools_are_found_by_a_reset(env: AgentEnv) -> None:
    assert env.factory.__name__ == "guess"
    assert [name for name in vars(env.factory) if not name.startswith("_")] == ["guess", "end_turn"]
    assert str(inspect.signature(env.factory.guess)) == "(self, *, number: int) -> str"


def test_a_rollout_and_its_reward(env: AgentEnv) -> None:
    environment: Any = env.factory()
    assert environment.reset(**env.dataset[0]) is None
    assert environment.guess(number=3) == "no"
    with pytest.raises(ToolFailure, match="too large"):
        environment.guess(number=101)
    with pytest.raises(ToolFailure, match="no such number"):
        environment.guess(number=-1)
    assert environment.guess(number=2) == '{"right": true}'
    with pytest.raises(ToolFailure, match="The episode has ended"):
        environment.guess(number=2)
    assert environment.get_reward() == 1.25


def test_words_that_come_with_the_reset_reach_the_model(env: AgentEnv) -> None:
    environment: Any = env.factory()
    assert environment.reset(**env.dataset[1]) == "Find my number, of task 1."
    environment.guess(number=3)
    assert environment.end_turn(response="I give up") == "The episode has ended."
    assert environment.get_reward() == 0.25


def test_an_episode_without_any_reward_is_unscored(env: AgentEnv, caplog: pytest.LogCaptureFixture) -> None:
    environment: Any = env.factory()
    environment.reset(**env.dataset[0])
    with caplog.at_level(logging.WARNING, "agent_env.training.trl"):
        assert environment.get_reward() is None
    assert "rollout left unscored: the server gave no reward in the whole episode" in caplog.text


def test_a_reward_function_gets_the_sum(url: str) -> None:
    with AgentEnv(url, split="train", reward=lambda scores: 2 * scores["reward"]) as env:
        environment: Any = env.factory()
        environment.reset(**env.dataset[0])
        environment.guess(number=2)
        assert environment.get_reward() == 2.0


def test_a_task_with_other_tools_stops_training(env: AgentEnv) -> None:
    environment: Any = env.factory()
    environment.reset(**env.dataset_for("test")[0])
    with pytest.raises(ForeignTools, match=r"guess, more .* tasks of different tools need servers of their own"):
        environment.get_reward()


def test_its_session_limit(env: AgentEnv) -> None:
    assert plugins().trainer_adapter("grpo").check(env, {"per_device_train_batch_size": 64}) == []
    environments: list[Any] = [env.factory() for _ in range(3)]
    for environment in environments[:2]:
        environment.reset(**env.dataset[0])
    with pytest.raises(CapacityError, match="is at its limit of 2 sessions"):
        environments[2].reset(**env.dataset[0])


def test_an_episode_left_in_the_middle(env: AgentEnv) -> None:
    environment: Any = env.factory()
    for _ in range(3):
        environment.reset(**env.dataset[0])
        environment.guess(number=1)
    assert environment.get_reward() == 0.25


def test_a_server_without_tasks() -> None:
    with serving("no-tasks") as address, pytest.raises(AgentEnvError, match="no Task API of OpenEnv's either"):
        AgentEnv(address)

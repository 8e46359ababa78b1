"""The environment class across processes."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from agent_env_trl.environment import FAILED, Environment, ToolFailure
from agent_env_trl.factory import environment_class

from agent_env_core.client import Address, Outcome, Toolset
from agent_env_core.errors import AgentEnvError, EpisodeError

TOOL = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}


def half(scores: Mapping[str, float]) -> float:
    return 0.5 * scores["grade"]


def nothing(scores: Mapping[str, float]) -> None:
    pass


def made(*tools: Any, **keywords: Any) -> type[Environment]:
    settings = {
        "name": "quay-v1",
        "hosts": [Address.of("http://env-host:8000")],
        "tool_timeout": 60,
        "reset_timeout": 600,
    }
    return environment_class(
        Toolset("quay", "abc", tools or (TOOL,)), **{"combine": None, **settings, **keywords}
    )  # fmt: skip


def test_the_same_object_comes_out_of_a_pickle() -> None:
    cls = made()
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert pickle.loads(pickle.dumps({"quay": cls}))["quay"] is cls
    assert made() is not cls


def test_a_pickle_holds_no_secret_and_nothing_that_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_TOKEN", "sk-hunter2")
    cls = made()
    environment = cls()
    data = pickle.dumps(cls)
    assert [host.token for host in environment._session._hosts] == ["sk-hunter2"]
    assert b"hunter2" not in data
    assert len(data) < 2000


def test_a_base_class_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(Environment)) is Environment


def test_a_reward_function_goes_along_when_it_can() -> None:
    from agent_env_core.play.rewards import resolve_reward

    assert pickle.loads(pickle.dumps(made(combine=resolve_reward("grade", ["grade"]))))
    cls = made(combine=resolve_reward(lambda scores: 1.0, ["grade"]))
    with pytest.raises(pickle.PicklingError, match="Define the function at the top of a module"):
        pickle.dumps(cls)


def test_tools_that_cannot_be_methods_are_refused_when_the_class_is_built() -> None:
    with pytest.raises(AgentEnvError, match=r"'two words' isn't a Python identifier.*modify_env_tool_access"):
        made({**TOOL, "name": "two words"})


def test_tools_named_like_helpers_do_not_replace_them() -> None:
    """Whatever a tool is called, the environment's own methods stay."""
    cls = made(*({**TOOL, "name": name} for name in ("close", "step", "state", "dataset", "session")))
    assert cls.reset is Environment.reset
    assert cls.get_reward is Environment.get_reward
    assert {"close", "step", "state"} <= set(vars(cls))


def test_a_spawned_process_builds_its_own_and_plays(env: Any, tmp_path: Any) -> None:
    """As AsyncGRPO does: the class is pickled, the token isn't, and the child opens sessions of its own."""
    pickled = tmp_path / "factory.pickle"
    pickled.write_bytes(pickle.dumps(env.factory))
    assert env._local.token.encode() not in pickled.read_bytes()
    code = (
        "import pickle, sys\n"
        "data = open(sys.argv[1], 'rb').read()\n"
        "factory = pickle.loads(data)\n"
        "assert pickle.loads(data) is factory\n"
        "environment = factory()\n"
        "environment.reset(split='train', index=0)\n"
        "print(environment.add(amount=3), environment.get_reward(), type(environment).__name__)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(pickled)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stderr == ""
    assert ended.stdout == '{"value": 3} 1.0 counter-v1\n'


def test_a_forked_process_starts_sessions_of_its_own(env: Any, tmp_path: Any) -> None:
    """A fork has the objects but not the client's thread; it neither hangs nor talks on its parent's sockets."""
    code = (
        "import os, pickle, sys\n"
        "environment = pickle.loads(open(sys.argv[1], 'rb').read())()\n"
        "environment.reset(split='train', index=0)\n"
        "environment.add(amount=1)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    environment.reset(split='train', index=0)\n"
        "    print('child', environment.add(amount=3), environment.get_reward(), flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print('parent', environment.add(amount=2), environment.get_reward())\n"
    )
    pickled = tmp_path / "factory.pickle"
    pickled.write_bytes(pickle.dumps(env.factory))
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(pickled)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.stderr == ""
    assert ended.stdout == 'child {"value": 3} 1.0\nparent {"value": 3} 1.0\n'


def test_one_pool_of_threads_may_use_one_environment(env: Any) -> None:
    """As AsyncGRPO does: reset, tools and reward of one environment on different threads."""
    environment = env.factory()
    found: list[Any] = []
    for work in (
        lambda: environment.reset(**env.dataset[0]),
        lambda: found.append(environment.add(amount=3)),
        lambda: found.append(environment.get_reward()),
    ):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(30)
    assert found == ['{"value": 3}', 1.0]


async def test_tools_that_take_long_hold_up_neither_each_other_nor_the_loop(local: Any) -> None:
    """As AsyncGRPO calls them, from threads of its loop's; each ends by its deadline."""
    env = await asyncio.to_thread(local, max_concurrent_envs=8, tool_timeout=4)
    environments = [(await asyncio.to_thread(lambda: env.factory))() for _ in range(8)]
    loop = asyncio.get_running_loop()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.1)
            ticks += 1

    with ThreadPoolExecutor(8) as pool:
        for environment in environments:
            await loop.run_in_executor(pool, partial(environment.reset, **env.dataset[0]))
        await asyncio.gather(*(loop.run_in_executor(pool, environment._session.turn) for environment in environments))
        ticker, started = asyncio.create_task(tick()), time.monotonic()
        hangs = [loop.run_in_executor(pool, environment.hang) for environment in environments]
        ends = await asyncio.gather(*hangs, return_exceptions=True)
        took = time.monotonic() - started
        ticker.cancel()
    assert [str(end).startswith("hang didn't answer within 4s") for end in ends] == [True] * 8
    assert took < 24, "one after another they take 32 s"
    assert ticks > 5


def test_a_batch_known_to_be_complete_is_scored_at_once(env: Any) -> None:
    factory = env._factory(together=True)
    assert factory is not env.factory
    environments = [factory() for _ in range(4)]
    for environment in environments:
        environment.reset(**env.dataset[0])
        environment.add(amount=3)
    assert environments[0].get_reward() == 1.0
    assert all(environment._session._player._episode.over for environment in environments)
    assert [environment.get_reward() for environment in environments] == [1.0] * 4
    assert os.getpid() == environments[0]._session._pid


def test_the_sockets_of_a_batch_are_opened_at_its_first_reset(env: Any) -> None:
    """`GRPOTrainer` makes as many environments as a batch needs and resets them one after another."""
    for factory, behind in ((env.factory, False), (env._factory(together=True), True)):
        first, other = factory(), factory()
        assert not other._session.opened, "making one touches no network"
        first.reset(**env.dataset[0])
        assert other._session.opened is behind
        for environment in (first, other):
            environment._session.close()


def test_why_an_episode_failed_is_told_once_of_each() -> None:
    """At each of its calls the reason would fill the model's context."""

    def fails(*_: Any) -> None:
        raise EpisodeError("tool", "the env is gone")

    environment: Any = made()()
    look = partial(environment.look, at="sea")
    environment._session = SimpleNamespace(opened=True, reset=lambda *_: None, call=fails, turn=fails, outcome=fails)
    for _ in range(2):
        environment.reset(split="train", index=0)
        assert environment.get_reward() is None  # tells the model nothing
        for act, told in (
            (look, "the env is gone"),
            (look, FAILED),
            (environment.end_turn, FAILED),
        ):
            with pytest.raises(ToolFailure) as failure:
                act()
            assert str(failure.value) == told


@pytest.mark.parametrize(
    ("outcome", "combine", "said"),
    [
        (Outcome(None), None, "the task records no score; give it a verifier step"),
        (Outcome(None), nothing, "the task records no score; give it a verifier step"),
        (Outcome(None, {"grade": 0.5}, "no reward: it broke"), None, "no reward: it broke"),
        (Outcome(1.0, {"grade": 0.5}), nothing, "the reward made of its scores (grade=0.5) is None"),
    ],
)
def test_no_reward_is_left_unexplained(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, combine: Any, said: str
) -> None:
    environment = made(combine=combine)()
    environment._session = SimpleNamespace(outcome=lambda: outcome)
    assert environment.get_reward() is None
    (record,) = caplog.records
    assert record.name == "agent_env.training.trl"
    assert record.getMessage().startswith("rollout left unscored: ")
    assert said in record.getMessage()

"""Several env hosts as one: two local servers of the same bundle."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from agent_env.training.trl import AgentEnv

from agent_env_core.client import Address
from agent_env_core.errors import AgentEnvError, CapacityError


def sessions(url: str) -> int:
    told = httpx.get(f"{url}/agent-env/v1/info", headers=Address.of(url).headers, trust_env=False).json()
    return int(told["sessions"])


@pytest.fixture(scope="module")
def urls(local: Callable[..., AgentEnv]) -> list[str]:
    """Two servers of the same bundle, for one session and for two, each with a token of its own."""
    return [local(max_concurrent_envs=limit).url for limit in (1, 2)]


def test_sessions_are_spread_by_the_limits(urls: list[str]) -> None:
    env = AgentEnv(urls, split="train")
    assert env.url == f"{urls[0]}, {urls[1]}"
    assert env.info.max_concurrent_envs == 3
    factory = pickle.loads(pickle.dumps(env.factory))
    assert factory is env.factory
    environments: list[Any] = [factory() for _ in range(4)]
    for environment in environments[:2]:
        environment.reset(**env.dataset[0])
    assert [sessions(url) for url in urls] == [1, 1]
    environments[2].reset(**env.dataset[0])
    assert [sessions(url) for url in urls] == [1, 2]
    with pytest.raises(CapacityError) as refusal:
        environments[3].reset(**env.dataset[0])
    limits = ", ".join(sorted((f"{urls[0]}: 1", f"{urls[1]}: 2")))
    assert str(refusal.value).startswith(
        f"every server is at its limit of sessions at once ({limits}), and the trainer"
    )
    for environment in environments[:3]:
        environment.add(amount=3)
    assert [environment.get_reward() for environment in environments[:3]] == [1.0, 1.0, 1.0]
    env.close()
    assert [sessions(url) for url in urls] == [0, 0]


def test_no_token_is_pickled(urls: list[str]) -> None:
    env = AgentEnv(urls, split="train")
    tokens = [Address.of(url).token for url in urls]
    assert len(set(tokens)) == 2
    pickled = pickle.dumps(env.factory)
    assert not [token for token in tokens if token is None or token.encode() in pickled]


def test_a_token_for_each_url(urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = {url: str(Address.of(url).token) for url in urls}
    for name in [name for name in os.environ if name.startswith("AGENT_ENV_TOKEN")]:
        monkeypatch.delenv(name)
    with pytest.raises(AgentEnvError, match=f"the server at {urls[0]} asks for a token"):
        AgentEnv(urls, split="train")
    assert len(AgentEnv(urls, split="train", token=tokens).dataset) == 2
    with pytest.raises(ValueError, match="token= names http://elsewhere"):
        AgentEnv(urls, token={"http://elsewhere": "x"})


@pytest.mark.parametrize("given", [None, 8000, ["http://a:1", None]])
def test_what_is_no_address_is_refused_by_name(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^(None|8000) is no address of an env server: write it as http://host:port"):
        AgentEnv(given)


@pytest.mark.parametrize("given", [[], ["http://a:1", "http://a:1/"]])
def test_urls_are_some_and_each_once(given: list[str]) -> None:
    with pytest.raises(ValueError, match="must be one or more servers, each given once"):
        AgentEnv(given)


def test_every_server_that_does_not_answer_is_named() -> None:
    with socket.socket() as one, socket.socket() as other:  # bound and not listening: nobody answers there
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        dead = [f"http://127.0.0.1:{taken.getsockname()[1]}" for taken in (one, other)]
        with pytest.raises(AgentEnvError) as refusal:
            AgentEnv(dead)
    lines = str(refusal.value).splitlines()
    assert [line.split(" (")[0] for line in lines] == [f"nothing answers at {url}" for url in dead]

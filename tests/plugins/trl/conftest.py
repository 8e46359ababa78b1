"""The counter bundle with one toolset, served by ``AgentEnv.local`` on the process provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv


@pytest.fixture(scope="module")
def local(one_toolset: Path) -> Iterator[Callable[..., AgentEnv]]:
    """``AgentEnv.local`` with other defaults: it serves ``counter-v1``, on processes, and is closed at the end."""
    made: list[AgentEnv] = []

    def start(bundle: Any = one_toolset, **keywords: Any) -> AgentEnv:
        made.append(AgentEnv.local(bundle, **{"sandbox": "process", "split": "train", **keywords}))
        return made[-1]

    yield start
    for env in made:
        env.close()


@pytest.fixture(scope="module")
def env(local: Callable[..., AgentEnv]) -> AgentEnv:
    """One for a module's tests that leave it as they found it."""
    return local()

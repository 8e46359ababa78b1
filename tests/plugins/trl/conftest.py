"""The counter bundle with one toolset, served by ``AgentEnv.local`` on the process provider."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv

OTHER_TOOLSETS = ("tool-access", "role")


@pytest.fixture(scope="session")
def one_toolset(counter_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counter bundle without the tasks that offer other tools; it's called ``counter-v1``."""
    copy = tmp_path_factory.mktemp("bundles") / "counter-v1"
    shutil.copytree(counter_bundle, copy)
    for task in OTHER_TOOLSETS:
        (copy / "tasks" / f"{task}.json").unlink()
    (copy / "evals" / "eval.toml").write_text('tasks = ["two-turns"]\n', encoding="utf-8")
    return copy


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

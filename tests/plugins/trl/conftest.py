"""The counter bundle with one toolset, served by ``AgentEnv.local`` on the process provider."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv


@pytest.fixture(scope="session")
def office(gridsim_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of three toolsets, called ``office``: ``email``, ``email+bash``, and a day of ``gridsim``."""
    bundle = tmp_path_factory.mktemp("bundles") / "office"
    shutil.copytree(Path(__file__).resolve().parents[2] / "bundles" / "office", bundle)
    for part in ("envs/gridsim", "artifacts/gridsim-verifier"):
        shutil.copytree(gridsim_bundle / part, bundle / part)
    day = min((gridsim_bundle / "tasks").glob("*.json"))
    shutil.copy(day, bundle / "tasks" / "day.json")
    return bundle


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

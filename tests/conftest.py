"""What every test may use: the Docker rule, the bundles, and checks that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
GRIDSIM = ROOT / "bundles" / "gridsim-v1"


@cache
def why_no_docker() -> str:
    """Why Docker tests can't run here; empty when an engine answers."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as exc:
        return f"the docker package isn't installed ({exc}); run `make setup`"
    try:
        client = docker.from_env(timeout=10)
    except DockerException as exc:
        return f"no Docker engine answers: {' '.join(str(exc).split())}"
    try:
        client.ping()
    except (DockerException, OSError) as exc:
        return f"no Docker engine answers: {' '.join(str(exc).split())}"
    finally:
        client.close()
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A Docker test without an engine is skipped, except in CI, where it must never be skipped unnoticed."""
    if item.get_closest_marker("docker") and (reason := why_no_docker()):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs the Docker tests, and {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def gridsim_bundle() -> Path:
    """The GridSim bundle, generated first where ``make setup`` has not done it."""
    if not (GRIDSIM / "tasks").is_dir():
        made = subprocess.run([sys.executable, str(GRIDSIM / "generator")], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    return GRIDSIM


@pytest.fixture(scope="session")
def counter_bundle() -> Path:
    """A bundle of one tiny env that counts: quick to deploy, several step types."""
    return ROOT / "tests" / "bundles" / "counter"


def wait_until(true: Callable[[], object], seconds: float = 10.0) -> bool:
    """Polls ``true`` until it holds or ``seconds`` have passed; returns whether it held."""
    import time

    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """Fails a test that leaves child processes, direct or not, that were not there before it."""
    me = psutil.Process()
    before = set(me.children(recursive=True))

    def left() -> list[psutil.Process]:
        return [p for p in set(me.children(recursive=True)) - before if p.is_running() and p.status() != "zombie"]

    yield
    if not wait_until(lambda: not left()):
        pytest.fail(f"processes left behind: {[' '.join(p.cmdline()) for p in left()]}", pytrace=False)


@pytest.fixture
def containers_with() -> Iterator[Callable[[str], list[str]]]:
    """A function that lists the containers, running or not, that carry a label: ``"name"`` or ``"name=value"``."""
    import docker

    client = docker.from_env()
    yield lambda label: [c.id for c in client.containers.list(all=True, filters={"label": label}, ignore_removed=True)]
    client.close()

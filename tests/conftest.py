"""What every test may use: the Docker rule, the bundles, and checks that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from waiting import ended, until

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

os.environ["AGENT_ENV_STORE"] = ""  # the map of whoever runs the tests is not theirs
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a script's background; children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
GRIDSIM = ROOT / "bundles" / "gridsim-v1"


@pytest.fixture(scope="session", autouse=True)
def _alone_on_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Limits aren't shared with other runs, and nothing is deployed ahead, but where a test is about that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_ENV_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        patch.setenv("AGENT_ENV_WARM", "0")
        yield


@cache
def why_no_docker() -> str:
    """Why Docker tests can't run here; empty when an engine answers."""
    # In a process of its own: the SDK leaves a socket open when nobody answers, which would fail some later test.
    ask = "from agent_env_core.sandbox.probe import look; print(look('docker', seconds=10).problem)"
    asked = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return (asked.stdout if asked.returncode == 0 else asked.stderr.splitlines()[-1]).strip()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A Docker test without an engine is skipped, except in CI, where it must never be skipped unnoticed."""
    if item.get_closest_marker("docker") and (reason := why_no_docker()):
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs the Docker tests, and {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.hookimpl(tryfirst=True)  # before xdist, which tells groups by the ids
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers run, one of them has all Docker tests, and files with slow tests come first."""
    if not hasattr(config, "workerinput"):
        return
    docker = {item for item in items if item.get_closest_marker("docker")}
    for item in docker:
        item.add_marker(pytest.mark.xdist_group("docker"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item not in docker, item.path not in slow))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Every other file goes to one worker as a whole: its tests share servers and bundles."""
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return super()._split_scope(nodeid).partition("::")[0]

    return Files(config, log)


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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained Qwen3 of some thousand parameters that knows bytes; its context has 4096 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from examples.train_gridsim.model import build_model, build_tokenizer
    tokenizer = build_tokenizer([])
    tokenizer.model_max_length = 4096
    model = build_model(tokenizer, hidden=32, layers=1)
    model.config.max_position_embeddings = 4096
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def missing_tests() -> Callable[[str], list[str]]:
    """Of the tests that a page names, as ``tests/….py::test_…`` between backticks, those that there aren't.

    Fails on a page that names none; so nothing goes unnoticed where the way of writing them changes.
    """

    def missing(page: str) -> list[str]:
        named = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)))
        assert named, "the page names no test"
        sources = {path: (ROOT / path).read_text("utf-8") for path, _ in named if (ROOT / path).is_file()}
        return [
            f"{path}::{test}"
            for path, test in named
            if not re.search(rf"^ *(async )?def {test}\(", sources.get(path, ""), re.MULTILINE)
        ]

    return missing


@pytest.fixture
def tutorial_bundle(tmp_path: Path) -> Path:
    """The bundle that ``docs/writing-a-bundle.md`` builds, written out as a folder: one env, ``keeper``, two tasks."""
    folder = tmp_path / "higher-lower"
    page = (ROOT / "docs" / "writing-a-bundle.md").read_text(encoding="utf-8")
    for name, content in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """Fails a test that leaves child processes, direct or not, that were not there before it."""
    me = psutil.Process()
    before = set(me.children(recursive=True))

    def left() -> list[psutil.Process]:
        return [process for process in set(me.children(recursive=True)) - before if not ended(process)]

    yield
    try:
        until(lambda: not left(), seconds=20)
    except AssertionError:
        pytest.fail(f"processes left behind: {[str(process) for process in left()]}", pytrace=False)


@pytest.fixture
def containers_with() -> Iterator[Callable[[str], list[str]]]:
    """A function that lists the containers, running or not, that carry a label: ``"name"`` or ``"name=value"``."""
    import docker

    client = docker.from_env()
    yield lambda label: [c.id for c in client.containers.list(all=True, filters={"label": label}, ignore_removed=True)]
    client.close()

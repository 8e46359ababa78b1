"""Bundles made from the counter, runners that leave nothing behind, and a player."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from waiting import eventually

from agent_env_core.bundle import Bundle, load_bundle
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner
from agent_env_core.steps.base import declaration

Steps = list[dict[str, Any]]


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def sandbox(request: pytest.FixtureRequest) -> str:
    """Each provider that episodes are tested on."""
    return request.param


@pytest.fixture(scope="module")
def bundle(counter_bundle: Path) -> Bundle:
    """The counter bundle as it is."""
    return load_bundle(counter_bundle, declaration)


@pytest.fixture
def steps() -> Callable[..., Steps]:
    """The usual steps of a task on the counter; keywords change or remove (None) them by id, ``more`` adds some."""

    def make(*, more: Steps | None = None, **changes: dict[str, Any] | None) -> Steps:
        load = {"service": "counter", "uri": "urn:counter:load/v1", "args": {"start": 0, "goal": 3}}
        usual = {
            "env": {"type": "deploy_env", "env_id": "counter"},
            "load": {"type": "apply_server_config", "env_id": "counter", "directives": [load]},
            "agent": {"type": "deploy_agent", "env_ids": ["counter"]},
            "play": {"type": "prompt_agent", "prompt": "Bring the counter to 3."},
            "grade": {
                "type": "env_outcome_verifier",
                "env_id": "counter",
                "file_artifact_id": "counter-verifier",
                "verifier_id": "counter",
            },
        }
        kept = {name: {**step, **(changes.get(name) or {})} for name, step in usual.items()}
        dropped = {name for name, change in changes.items() if change is None}
        return [{"id": name, **step} for name, step in kept.items() if name not in dropped] + (more or [])

    return make


@pytest.fixture
def make_bundle(tmp_path: Path, counter_bundle: Path) -> Callable[..., Bundle]:
    """Makes a bundle from the counter: other tasks, another start of its server, edits of its files."""

    def make(
        tasks: dict[str, Steps],
        *,
        start: str = "",
        edits: Sequence[tuple[str, str, str]] = (),
        files: dict[str, str] | None = None,
    ) -> Bundle:
        root = tmp_path / "bundle"
        shutil.copytree(counter_bundle, root)
        shutil.rmtree(root / "tasks")
        shutil.rmtree(root / "evals")
        for name, content in {f"tasks/{name}.json": json.dumps(task) for name, task in tasks.items()}.items():
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(content)
        for name, content in (files or {}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        for name, old, new in [("envs/counter/Dockerfile", 'START=""', f'START="{start}"'), *edits]:
            text = (root / name).read_text()
            assert old in text, (name, old)
            (root / name).write_text(text.replace(old, new))
        return load_bundle(root, declaration)

    return make


@pytest.fixture
async def open_runner(no_processes_left: None) -> AsyncIterator[Callable[..., Awaitable[Runner]]]:
    """Starts runners, closes them after the test, and checks that no sandbox is left."""
    async with AsyncExitStack() as stack:
        opened: list[Runner] = []

        async def open_(bundle: Bundle, **options: Any) -> Runner:
            runner = await stack.enter_async_context(Runner(bundle, **{"sandbox": "process", **options}))
            opened.append(runner)
            return runner

        yield open_
    for runner in opened:
        assert not runner.episodes
        assert runner.host.live == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_runner(bundle: Bundle, sandbox: str) -> AsyncIterator[Runner]:
    """One runner for the tests of a module that play the counter bundle as it is, for each provider."""
    async with Runner(bundle, sandbox=sandbox) as runner:
        yield runner


@pytest_asyncio.fixture(loop_scope="module")
async def runner(shared_runner: Runner, no_processes_left: None) -> AsyncIterator[Runner]:
    """The module's runner; each test must leave nothing in it."""
    yield shared_runner
    await eventually(lambda: shared_runner.host.live == 0 and not shared_runner.episodes)


@pytest.fixture(scope="session")
def begin() -> Callable[[Runner, str], Awaitable[Episode]]:
    """Starts the task of a name."""

    async def start(runner: Runner, name: str) -> Episode:
        spec = next(spec for spec in runner.specs.values() if spec.task.name == name)
        return await spec.start(runner)

    return start


@pytest.fixture(scope="session")
def play() -> Callable[..., Awaitable[dict[str, float]]]:
    """Plays an episode to its scores: in each turn adds the next amount and replies ``done``."""

    async def played(episode: Episode, *amounts: int) -> dict[str, float]:
        left = list(amounts)
        while (turn := await episode.next_turn()) is not None:
            async with turn.tools() as tools:
                result = await tools.call("add", {"amount": left.pop(0)}, timeout=30)
                assert not result.is_error, result.text
            await turn.end("done")
        return await episode.result()

    return played

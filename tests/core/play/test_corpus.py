"""Bundles that have a ``plays.toml``: each task of theirs is played by its script, through the Episode API.

A table of ``plays.toml`` is named after a task and may hold:

``turns``
    One table for each turn, in order: ``calls``, a list of ``[tool, arguments]``, with a third item for a text that
    the answer must hold, be it an error or not; ``offered``, the tools that the turn must offer; ``prompt`` and
    ``system_prompt``, what it must ask; and ``reply``. A turn that isn't in the list, or has an empty table, calls
    nothing.
``scores``
    What the run must score, step by step.
``agents``, ``seed``
    Who is played from outside, where a task prompts several agents; and what fills in ``<key>``.
``docker``
    Whether Docker plays it too, and not only ``process``: for what depends on files or processes of a sandbox.
``refused``
    Part of the reason why the task can't be played at all.
``error``, ``recorded``
    Part of the error that the run must end with, and what verifiers have on record all the same, by their ids.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import AsyncIterator, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_env_core.bundle import load_bundle
from agent_env_core.errors import EpisodeError, EpisodeRefused
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.play.turn import Turn
from agent_env_core.steps.base import declaration

BUNDLES = Path(__file__).resolve().parents[2] / "bundles"
PLAYS: dict[Path, dict[str, dict[str, Any]]] = {
    file.parent: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(BUNDLES.glob("*/plays.toml"))
}
SECONDS = 60.0


class Stage:
    """A bundle, and a runner with the specs of those of its tasks that can be played."""

    def __init__(self, folder: Path, sandbox: str, names: Collection[str]) -> None:
        self.bundle = load_bundle(folder, declaration)
        self.plays = PLAYS[folder]
        specs = [self.spec(name) for name in names if "refused" not in self.plays[name]]
        self.runner = Runner(self.bundle, sandbox=sandbox, specs=specs)

    def spec(self, name: str) -> EpisodeSpec:
        play = self.plays[name]
        task = next(task for task in self.bundle.tasks if task.name == name)
        return EpisodeSpec.from_task(task, trainer_agents=play.get("agents"), seed=play.get("seed"))


def _played() -> Iterator[Any]:
    for folder, plays in PLAYS.items():
        on_docker = tuple(name for name, play in plays.items() if play.get("docker"))
        for sandbox, names in (("process", tuple(plays)), ("docker", on_docker)):
            marks = [pytest.mark.docker] if sandbox == "docker" else []
            for name in names:
                yield pytest.param((folder, sandbox, names), name, id=f"{folder.name}-{name}-{sandbox}", marks=marks)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    made = Stage(*request.param)
    async with made.runner:
        yield made
    assert made.runner.host.live == 0


@pytest.mark.parametrize(("stage", "name"), [*_played()], indirect=["stage"], scope="module")
@pytest.mark.asyncio(loop_scope="module")
async def test_a_task_comes_to_what_its_script_says(stage: Stage, name: str):
    play = stage.plays[name]
    if "refused" in play:
        with pytest.raises(EpisodeRefused, match=re.escape(play["refused"])):
            stage.spec(name)
        return
    episode = await stage.runner.specs[stage.spec(name).task.id].start(stage.runner)
    try:
        async with asyncio.timeout(SECONDS):
            if "error" in play:
                with pytest.raises(EpisodeError, match=re.escape(play["error"])):
                    await _play(episode, play)
                kept = {name: verification.score for name, verification in episode.run.verifications.items()}
                assert kept == play.get("recorded", {})
            else:
                assert await _play(episode, play) == play["scores"], episode.run.verifications
    finally:
        await episode.abandon("the test is over")
    assert min(episode.timings.values()) >= 0, episode.timings


def test_every_task_of_a_corpus_has_a_script():
    for folder, plays in PLAYS.items():
        assert {file.stem for file in (folder / "tasks").glob("*.json")} == set(plays), folder.name


async def _play(episode: Episode, play: dict[str, Any]) -> dict[str, float]:
    turns = iter(play.get("turns", ()))
    while (turn := await episode.next_turn()) is not None:
        script = next(turns, {})
        for field in ("prompt", "system_prompt"):
            if field in script:
                assert getattr(turn, field) == script[field]
        await _calls(turn, script)
        await turn.end(script.get("reply"))
    scores = await episode.result()
    assert next(turns, None) is None, "the task has fewer turns than its script"
    return scores


async def _calls(turn: Turn, script: dict[str, Any]) -> None:
    async with turn.tools() as tools:
        if "offered" in script:
            assert [tool.name for tool in await tools.list()] == script["offered"]
        for tool, arguments, *said in script.get("calls", ()):
            result = await tools.call(tool, arguments, timeout=30)
            if said:
                assert said[0] in result.text, (tool, result.text)
            else:
                assert not result.is_error, (tool, result.text)

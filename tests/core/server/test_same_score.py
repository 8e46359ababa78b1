"""One task, one way of playing it, one score: by the Episode API, by an evaluation, and by the OpenEnv server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.evaluate.session import Session, Settings
from agent_env_core.models import ModelSettings
from agent_env_core.play.runner import Runner
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.steps.base import declaration

TASK = "one-turn-far"
SCORES = {"grade": 0.75}


async def by_hand(bundle: Path) -> dict[str, float]:
    loaded = load_bundle(bundle, declaration)
    spec = EpisodeSpec.from_task(next(task for task in loaded.tasks if task.name == TASK))
    async with Runner(loaded, sandbox="process", specs=[spec]) as runner:
        episode = await spec.start(runner)
        turn = await episode.next_turn()
        assert turn is not None
        async with turn.tools() as tools:
            await tools.call("add", {"amount": 5})
        await turn.end("done")
        return await episode.result()


def evaluated(bundle: Path, url: str, out: Path) -> Session:
    models = ModelSettings(base_url=url, model="m")
    return Session(Settings(str(bundle), tasks=(TASK,), models=models, sandbox="process", out=out))


def served(counter: Any) -> tuple[float, dict[str, float]]:
    with counter.session() as client:
        split = [task.task.name for task in counter.service.catalog.splits["all"]]
        client.reset(split="all", index=split.index(TASK))
        client.step({"type": "call_tool", "tool_name": "add", "arguments": {"amount": 5}})
        ended = client.step({"type": "call_tool", "tool_name": "end_turn", "arguments": {"response": "done"}})
        return ended.reward, ended.observation["metadata"]["scores"]


@pytest.mark.usefixtures("no_processes_left")
async def test_a_task_scores_the_same_whoever_plays_it(
    counter_bundle: Path, scripted_model: Any, calling: Callable[..., Any], tmp_path: Path
):
    scripted_model.says(calling(("add", {"amount": 5})), "done")
    session = evaluated(counter_bundle, scripted_model.url, tmp_path / "out")
    found: list[Any] = []
    summary = await session.run(found.append)
    assert found[0].scores == SCORES == await by_hand(counter_bundle)
    assert summary.score is not None
    assert summary.score.mean == 0.75
    assert [call.name for call in found[0].turns[0].calls] == ["add"]
    functions = {tool["function"]["name"]: tool["function"] for tool in scripted_model.requests[0]["tools"]}
    assert functions["add"]["parameters"]["properties"] == {"amount": {"type": "integer"}}


def test_a_server_gives_the_same(counter: Any):
    assert served(counter) == (0.75, SCORES)

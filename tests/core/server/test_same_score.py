"""One task, one way of playing it, one score: by an evaluation, by the Episode API, and by the OpenEnv server.

Each task is played by one script, whatever plays it: what a turn calls, and what it replies.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.evaluate.session import Session, Settings
from agent_env_core.models import ModelSettings
from agent_env_core.play.runner import Runner
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.steps.base import declaration

BUNDLES = Path(__file__).resolve().parents[2] / "bundles"


@dataclass(frozen=True)
class Play:
    """How a task is played, and what that must come to.

    Attributes:
        bundle: A folder of ``tests/bundles``.
        task: One of its tasks.
        turns: For each turn the tool it calls, that tool's arguments, and the reply.
        scores: What the run records.
        reward: The mean of it.
    """

    bundle: str
    task: str
    turns: tuple[tuple[str, dict[str, Any], str], ...]
    scores: dict[str, float]
    reward: float


PLAYS = {
    "multi-turn": Play(
        "counter",
        "two-turns",
        (("add", {"amount": 5}, "five"), ("add", {"amount": 1}, "six")),
        {"grade": 0.75},
        0.75,
    ),
    "seeds": Play("ledger", "seed", (("north_put", {"key": "closed", "value": "by agent"}, ""),), {"grade": 1.0}, 1.0),
    "coding": Play(
        "workshop",
        "fix",
        (("bash", {"command": "sed -i s/-/+/ repo/adder.py"}, "It adds."),),
        {"tests": 6 / 7},
        6 / 7,
    ),
}


@pytest.fixture(params=PLAYS.values(), ids=PLAYS.keys())
def play(request: pytest.FixtureRequest) -> Play:
    made: Play = request.param
    return made


@pytest.fixture
def bundle(play: Play, tmp_path: Path) -> Path:
    """The task alone, so that nothing else of its bundle is prepared."""
    copy = tmp_path / play.bundle
    shutil.copytree(BUNDLES / play.bundle, copy)
    shutil.rmtree(copy / "evals", ignore_errors=True)
    for task in (copy / "tasks").iterdir():
        if task.stem != play.task:
            task.unlink()
    return copy


async def by_hand(play: Play, bundle: Path) -> dict[str, float]:
    loaded = load_bundle(bundle, declaration)
    spec = EpisodeSpec.from_task(loaded.tasks[0])
    async with Runner(loaded, sandbox="process", specs=[spec]) as runner:
        episode = await spec.start(runner)
        for tool, arguments, reply in play.turns:
            turn = await episode.next_turn()
            assert turn is not None
            async with turn.tools() as tools:
                assert not (await tools.call(tool, arguments)).is_error
            await turn.end(reply)
        return await episode.result()


@pytest.mark.usefixtures("no_processes_left")
async def test_a_task_scores_the_same_whoever_plays_it(
    play: Play, bundle: Path, scripted_model: Any, calling: Callable[..., Any], tmp_path: Path
):
    scripted_model.says(
        *(answer for tool, arguments, reply in play.turns for answer in (calling((tool, arguments)), reply))
    )
    models = ModelSettings(base_url=scripted_model.url, model="m")
    session = Session(Settings(str(bundle), models=models, sandbox="process", out=tmp_path / "out"))
    rows: list[Any] = []
    summary = await session.run(rows.append)
    assert rows[0].scores == play.scores == await by_hand(play, bundle)
    assert rows[0].outcome == ("passed" if play.reward >= 1 else "below_one")
    assert summary.score is not None
    assert summary.score.mean == play.reward
    offered = {tool["function"]["name"] for tool in scripted_model.requests[0]["tools"]}
    assert play.turns[0][0] in offered
    assert [(call.name, turn.reply) for turn in rows[0].turns for call in turn.calls] == [
        (tool, reply) for tool, _, reply in play.turns
    ]


def test_a_server_gives_the_same(play: Play, bundle: Path, serve: Callable[..., Any]):
    with serve(bundle).session() as client:
        client.reset(split="all", index=0)
        for tool, arguments, reply in play.turns:
            called = client.step({"type": "call_tool", "tool_name": tool, "arguments": arguments})
            assert called.observation["error"] is None
            ended = client.step({"type": "call_tool", "tool_name": "end_turn", "arguments": {"response": reply}})
    assert (ended.reward, ended.observation["metadata"]["scores"]) == (play.reward, play.scores)

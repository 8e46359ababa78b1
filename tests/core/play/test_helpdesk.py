"""Tasks that need a model beside the one that plays: its user, its judge. Both stand behind a real HTTP server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.errors import BundleError, EpisodeError
from agent_env_core.models import ModelSettings
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.steps.base import declaration
from agent_env_core.testing.fake import FakeProvider

FOLDER = Path(__file__).resolve().parents[2] / "bundles" / "helpdesk"


def verdict(*scores: float) -> Callable[[dict[str, Any]], str]:
    def answer(body: dict[str, Any]) -> str:
        keys = re.findall(r'"id": "(c\d-[0-9a-f]{4})"', body["messages"][1]["content"])
        marks = [{"id": k, "score": s, "justification": "entry 1"} for k, s in zip(keys, scores, strict=True)]
        return json.dumps({"results": marks})

    return answer


def said(message: str, *, done: bool = False) -> str:
    return json.dumps({"message": message, "done": done})


def runner(url: str, **settings: Any) -> Runner:
    models = ModelSettings(url, **{"judge_model": "judge", "user_model": "user", **settings})
    return Runner(load_bundle(FOLDER, declaration), sandbox=SandboxHost(FakeProvider()), models=models)


async def begin(running: Runner, name: str) -> Episode:
    return await next(spec for spec in running.specs.values() if spec.task.name == name).start(running)


async def test_a_conversation_and_its_judge(scripted_model: Any):
    scripted_model.says(said("A red one."), said("When?"), said("Fine.", done=True), verdict(1, 1))
    async with runner(scripted_model.url) as running:
        episode = await begin(running, "parcel")
        prompts, places = [], []
        for reply in ("What does it look like?", "It is on its way.", "It comes tomorrow."):
            turn = await episode.next_turn()
            assert turn is not None
            prompts.append(turn.prompt)
            places.append((turn.step_id, turn.number, turn.of, turn.system_prompt))
            await turn.end(reply)
        assert await episode.next_turn() is None
        assert await episode.result() == {"rubric": 1.0, "ends": 1.0}
        await episode.wait_finished()
    assert prompts == ["Where is my parcel?", "A red one.", "When?"]
    assert places == [("talk", number, 4, "You work at a help desk.") for number in (1, 2, 3)]
    assert [body["model"] for body in scripted_model.requests] == ["user"] * 3 + ["judge"]
    assert "turn 3, agent (default-agent): It comes tomorrow." in scripted_model.requests[3]["messages"][1]["content"]


async def test_marks_in_between(scripted_model: Any):
    scripted_model.says(verdict(0.5, 0))
    async with runner(scripted_model.url) as running:
        episode = await begin(running, "letter")
        turn = await episode.next_turn()
        assert turn is not None
        await turn.end("Sorry.")
        assert await episode.result() == {"rubric": 0.5}
        await episode.wait_finished()


@pytest.mark.parametrize("played", ["parcel", "letter"])
async def test_a_model_that_fails_leaves_no_score(scripted_model: Any, played: str):
    scripted_model.says(400)
    async with runner(scripted_model.url) as running:
        episode = await begin(running, played)
        turn = await episode.next_turn()
        assert turn is not None
        await turn.end("Hm.")
        with pytest.raises(EpisodeError, match="refused by script"):
            await episode.result()
        await episode.wait_finished()


async def test_tasks_whose_models_are_missing_are_left_out(scripted_model: Any):
    async with runner(scripted_model.url, user_model=None) as running:
        assert [spec.task.name for spec in running.specs.values()] == ["letter"]
        (reason,) = running.left_out.values()
        assert reason == (
            "step 'talk': max_conversation_turns=4 needs a model that plays the user: none is named;"
            " set AGENT_ENV_USER_MODEL, or use --user-model of `agent-env run`"
        )


async def test_where_no_api_is_named_nothing_is_deployed(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "AGENT_ENV_JUDGE_MODEL", "AGENT_ENV_USER_MODEL"):
        monkeypatch.delenv(name, raising=False)
    provider = FakeProvider()
    with pytest.raises(BundleError, match=r"set OPENAI_BASE_URL .* to one that is compatible"):
        await Runner(load_bundle(FOLDER, declaration), sandbox=SandboxHost(provider)).start()
    assert provider.calls["create"] == 0

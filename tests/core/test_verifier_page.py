"""``docs/writing-a-verifier.md``: its bundle is sound, and its tasks score as the page says."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import pytest_asyncio

from agent_env_core.bundle import load_bundle
from agent_env_core.models import ModelSettings
from agent_env_core.play.runner import Runner
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.steps.base import declaration
from agent_env_core.testing.fake import FakeProvider

BOOKS = ("Atlas", "Basil", "Cedar")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "writing-a-verifier.md"


@pytest_asyncio.fixture
async def library(tmp_path: Path, scripted_model: Any) -> AsyncIterator[Runner]:
    """The page's bundle; its env answers from this process."""
    files = re.findall(
        r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    for path, text in files:
        file = tmp_path / "library" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    server = ModuleType("shelf")
    exec(dict(files)["envs/shelf/server.py"], server.__dict__)
    provider = FakeProvider(app=lambda spec: server.Shelf().create_app().streamable_http_app())
    models = ModelSettings(scripted_model.url, judge_model="judge", user_model="user")
    bundle = load_bundle(tmp_path / "library", declaration)
    async with Runner(bundle, sandbox=SandboxHost(provider), models=models) as runner:
        assert not runner.left_out
        yield runner


async def play(runner: Runner, name: str, *turns: tuple[str, list[tuple[str, dict[str, Any]]]]) -> tuple[Any, Any]:
    episode = await next(spec for spec in runner.specs.values() if spec.task.name == name).start(runner)
    for reply, calls in turns:
        turn = await episode.next_turn()
        assert turn is not None
        async with turn.tools() as tools:
            for tool, arguments in calls:
                assert not (await tools.call(tool, arguments, timeout=30)).is_error
        await turn.end(reply)
    scores = await episode.result()
    await episode.wait_finished()
    return scores, episode.run


def books(*names: str) -> list[tuple[str, dict[str, Any]]]:
    return [("bring_back", {"book": name}) for name in names]


async def test_books(library: Runner):
    scores, run = await play(library, "return", ("All are back.", books(*BOOKS)))
    assert scores == {"grade": 1.0}
    assert run.verifications["grade"].results[-1] == {"id": "told", "result": True, "weight": 0}
    used = run.responses[0].exchanges[0].uses
    assert [(use.tool, use.arguments, use.failure) for use in used] == [(*call, "") for call in books(*BOOKS)]
    assert "still out" in used[0].result
    assert (await play(library, "return", ("", books("Basil"))))[0] == {"grade": pytest.approx(1 / 3)}
    assert (await play(library, "return", ("", [])))[0] == {"grade": 0.0}
    assert (await play(library, "return", ("All are back.", [("burn", {})])))[0] == {"grade": 0.0}


async def test_replies(library: Runner):
    full = "Mercator, in 1595 [Card 12]."
    assert (await play(library, "answer", (full, [])))[0] == {"facts": 1.0, "form": 1.0, "score": 1.0}
    assert (await play(library, "answer", ("Mercator, 1595.", [])))[0] == {"facts": 1.0, "form": 0.0, "score": 0.5}


async def test_a_judge(library: Runner, scripted_model: Any):
    def judge(body: dict[str, Any]) -> str:
        keys = re.findall(r'"id": "(c\d-[0-9a-f]{4})"', body["messages"][1]["content"])
        marks = zip(keys, (1, 0, 1), strict=True)
        return json.dumps({"results": [{"id": key, "score": mark, "justification": "so"} for key, mark in marks]})

    scripted_model.says(judge)
    scores, _ = await play(library, "letter", ("Dear reader …", []))
    assert scores == {"style": pytest.approx(2 / 3)}
    assert "Judge as a librarian would." in scripted_model.requests[0]["messages"][1]["content"]


async def test_a_simulated_user(library: Runner, scripted_model: Any):
    scripted_model.says(
        json.dumps({"message": "One on trees.", "done": False}), json.dumps({"message": "Thanks.", "done": True})
    )
    scores, _ = await play(library, "lend", ("About what?", []), ("Take Cedar, until Friday.", []))
    assert scores == {"found": 1.0}
    assert "You want a book on trees" in scripted_model.requests[0]["messages"][0]["content"]


def test_the_page_names_the_settings_there_are():
    from agent_env_core.models import settings

    names = {value for name, value in vars(settings).items() if name.endswith("_VARIABLE")}
    assert names == set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE.read_text(), re.MULTILINE))

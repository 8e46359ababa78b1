"""The task of ``docs/coding-tasks.md``, played."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.play.episode import Episode
from agent_env_core.play.runner import Runner
from agent_env_core.steps.base import declaration

PAGE = Path(__file__).resolve().parents[3] / "docs" / "coding-tasks.md"


@pytest.mark.parametrize(("command", "score"), [("true", 0.25), ("sed -i s/-/+/ adder/adder.py", 1.0)])
async def test_the_task_scores(
    tmp_path: Path,
    open_runner: Callable[..., Awaitable[Runner]],
    begin: Callable[[Runner, str], Awaitable[Episode]],
    command: str,
    score: float,
):
    folder = tmp_path / "coding"
    for name, content in re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE.read_text(), re.DOTALL | re.MULTILINE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    episode = await begin(await open_runner(load_bundle(folder, declaration)), "fix-adder")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        hidden = await tools.call("bash", {"command": "ls /tests"})
        assert hidden.text == ""
        done = await tools.call("bash", {"command": command})
        assert not done.is_error, done.text
    await turn.end()
    assert await episode.result() == {"grade": score}

"""Tasks whose agent works in a sandbox, over the wire."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

WORKSHOP = Path(__file__).resolve().parents[2] / "bundles" / "workshop"


@pytest.fixture
def server(serve: Any, tmp_path: Path) -> Any:
    """A server of two tasks: one that is scored by what is in the agent's sandbox, one by tests in a container."""
    copy = tmp_path / "workshop"
    shutil.copytree(WORKSHOP, copy)
    for task in (copy / "tasks").iterdir():
        if task.stem not in ("fix", "classic"):
            task.unlink()
    return serve(copy, reward="mean")


@pytest.fixture
def session(server: Any) -> Iterator[Any]:
    with server.session() as client:
        yield client


def bash(session: Any, command: str) -> Any:
    step = {"type": "call_tool", "tool_name": "bash", "arguments": {"command": command}}
    return session.step(step)


def test_bash_is_offered_and_works(server: Any, session: Any) -> None:
    session.reset(split="all", index=0)
    listed = session.step({"type": "list_tools"}).observation["tools"]
    (tool,) = [tool for tool in listed if tool["name"] == "bash"]
    assert tool["input_schema"] == {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    }
    assert bash(session, "pwd >&2; echo fixed").observation["result"]["data"].startswith("fixed\n/")
    failed = bash(session, "echo no; exit 4").observation
    assert (failed["result"], failed["error"]) == (
        None,
        {"error_type": "execution_error", "message": "no\nexit code 4"},
    )
    assert bash(session, "sed -i s/-/+/ adder.py").observation["error"] is None
    ended = session.step({"type": "call_tool", "tool_name": "end_turn", "arguments": {}})
    assert (ended.done, ended.reward) == (True, 1.0)


def test_a_command_past_the_deadline_is_an_answer(session: Any) -> None:
    session.reset(split="all", index=1, tool_timeout=3.0)
    late = bash(session, "echo begun; sleep 60")
    assert (late.done, late.reward) == (False, None)
    assert late.observation["error"]["message"] == "begun\ntimed out after 3s; it was ended, with what it started"
    assert bash(session, "echo still here").observation["result"]["data"] == "still here\n"


def test_its_toolset_is_read_without_playing(server: Any) -> None:
    asked = httpx.get(f"{server.url}/agent-env/v1/toolsets", timeout=60, trust_env=False).json()
    (toolset,) = asked["toolsets"]
    assert (toolset["name"], [tool["name"] for tool in toolset["tools"]]) == ("bash", ["bash"])

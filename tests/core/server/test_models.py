"""A served task with a simulated user and a judge: the server's environment says which models they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "bundles" / "helpdesk"


def call(session: Any, tool: str, **arguments: Any) -> Any:
    return session.step({"type": "call_tool", "tool_name": tool, "arguments": arguments})


def judged(body: dict[str, Any]) -> str:
    keys = re.findall(r'"id": "(c\d-[0-9a-f]{4})"', body["messages"][1]["content"])
    return json.dumps({"results": [{"id": key, "score": 1, "justification": "entry 1"} for key in keys]})


def test_a_conversation_is_played_over_the_wire(serve: Any, scripted_model: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", scripted_model.url)
    monkeypatch.setenv("AGENT_ENV_USER_MODEL", "user")
    monkeypatch.setenv("AGENT_ENV_JUDGE_MODEL", "judge")
    scripted_model.says(
        json.dumps({"message": "A red one.", "done": False}), json.dumps({"message": "", "done": True}), judged
    )
    server = serve(FOLDER, reward="mean")
    with server.session() as session:
        opened = session.reset(split="all", index=1)
        assert opened.observation["metadata"]["prompt"] == "Where is my parcel?"
        assert opened.observation["metadata"]["turn"]["of"] == 4
        second = call(session, "end_turn", response="What does it look like?")
        assert (second.done, second.observation["result"]["prompt"]) == (False, "A red one.")
        ended = call(session, "end_turn", response="Tomorrow, I think.")
    assert ended.done
    assert ended.observation["metadata"]["scores"] == {"rubric": 1.0, "ends": 0.0}
    assert ended.reward == 0.5
    assert [body["model"] for body in scripted_model.requests] == ["user", "user", "judge"]

"""How much of a tool's answer the model is shown."""

from __future__ import annotations

from typing import Any

import pytest
from agent_env.training.trl import AgentEnv
from agent_env_trl.environment import ToolFailure

from agent_env_core.texts import shortened


def test_a_long_answer_is_cut_in_its_middle_and_says_so(env: AgentEnv) -> None:
    env = AgentEnv(env.url, split="train", answer_limit=10)
    environment = env.factory()
    environment.reset(**env.dataset[0])
    assert environment.add(amount=3) == '{"value": 3}'[:5] + "\n[2 characters left out]\n" + '{"value": 3}'[-5:]
    assert environment.peek() == environment.add(amount=0)
    with pytest.raises(ToolFailure, match=r"^.{5}\n\[\d+ characters left out\]\n.{5}$"):
        environment.add(amount="two")
    assert environment.get_reward() == 1.0


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("abcdef", None, "abcdef"),
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abc\n[1 characters left out]\nef"),
        ("abcdef", 1, "a\n[5 characters left out]\n"),
    ],
)
def test_what_is_left_of_an_answer(text: str, limit: int | None, shown: str) -> None:
    assert shortened(text, limit) == shown


@pytest.mark.parametrize(("limit", "error"), [(0, ValueError), ("9", TypeError), (True, TypeError), (2.5, TypeError)])
def test_a_limit_that_is_none(limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="answer_limit="):
        AgentEnv("http://127.0.0.1:9", answer_limit=limit)

"""A whole session, played by OpenEnv's own generic client: observations are those of the format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

TASK = {"name": "one-turn", "split": "train", "index": 0}


@pytest.fixture
def session(counter: Any) -> Iterator[Any]:
    with counter.session() as client:
        yield client


def call(session: Any, tool: str, **arguments: Any) -> Any:
    return session.step({"type": "call_tool", "tool_name": tool, "arguments": arguments})


def task_of(metadata: dict[str, Any]) -> dict[str, Any]:
    task = dict(metadata["task"])
    assert task.pop("id").endswith("/counter/one-turn")
    return task


def test_a_task_from_reset_to_reward(session: Any) -> None:
    opened = session.reset(split="train", index=0)
    metadata = opened.observation["metadata"]
    assert (opened.done, opened.reward) == (False, None)
    assert metadata["prompt"] == "Bring the counter to 3."
    assert metadata["system_prompt"] == "You operate a counter."
    assert task_of(metadata) == TASK
    assert metadata["turn"]["number"] == metadata["turn"]["of"] == 1

    listed = session.step({"type": "list_tools"})
    tools = {tool["name"]: tool for tool in listed.observation["tools"]}
    assert {"add", "peek", "end_turn"} <= set(tools)
    assert "hint" not in tools
    assert tools["add"]["input_schema"]["required"] == ["amount"]
    assert tools["end_turn"]["input_schema"]["properties"].keys() == {"response"}

    added = call(session, "add", amount=3)
    assert (added.done, added.reward) == (False, None)
    assert added.observation["error"] is None
    assert added.observation["result"] == {
        "content": [{"type": "text", "text": '{"value": 3}'}],
        "structured_content": None,
        "meta": None,
        "data": '{"value": 3}',
        "is_error": False,
    }

    ended = call(session, "end_turn", response="done")
    assert (ended.done, ended.reward) == (True, 1.0)
    assert ended.observation["result"] is None
    assert ended.observation["metadata"]["scores"] == {"grade": 1.0}
    assert task_of(ended.observation["metadata"]) == TASK

    state = session.state()
    assert state.pop("episode_id")
    assert state.pop("task_id").endswith("/one-turn")
    assert state == {
        "step_count": 2, "task_name": "one-turn", "split": "train", "index": 0, "turn": "play", "done": True,
    }  # fmt: skip


def test_the_next_turn_comes_as_the_result_of_end_turn(counter: Any, session: Any) -> None:
    rows = httpx.post(f"{counter.url}/counter/tasks", json={"split": "all"}, trust_env=False).json()["tasks"]
    opened = session.reset(task_id=next(row["id"] for row in rows if row["name"] == "two-turns"))
    assert opened.observation["metadata"]["turn"]["of"] == 2
    call(session, "add", amount=5)
    second = call(session, "end_turn")
    assert (second.done, second.reward) == (False, None)
    assert second.observation["result"] == {
        "prompt": "Now bring it to 8.",
        "system_prompt": "You operate a counter. Answer in one word.",
    }
    assert second.observation["metadata"]["turn"]["number"] == 2
    assert session.state()["turn"] == "second"
    call(session, "add", amount=3)
    assert call(session, "end_turn", response="eight").reward == 1.0


def test_a_tool_that_fails_is_an_error_of_the_call_alone(session: Any) -> None:
    session.reset(split="train", index=0)
    failed = call(session, "add", amount="three")
    assert failed.observation["result"] is None
    assert failed.observation["error"]["error_type"] == "execution_error"
    assert "three" in failed.observation["error"]["message"]
    assert not failed.done
    unknown = call(session, "teleport")
    assert unknown.observation["error"]["error_type"] == "tool_not_found"
    assert "add" in unknown.observation["error"]["message"]
    assert not unknown.done
    for arguments in ({"response": 3}, {"answer": "x"}):
        wrong = session.step({"type": "call_tool", "tool_name": "end_turn", "arguments": arguments})
        assert wrong.observation["error"]["error_type"] == "invalid_args"
        assert not wrong.done
    assert session.state()["step_count"] == 4


@pytest.mark.parametrize("step", [{"type": "list_tools"}, {"type": "call_tool", "tool_name": "add"}])
def test_a_step_without_an_episode_says_to_reset(session: Any, step: dict[str, Any]) -> None:
    before = session.step(step)
    assert before.done
    assert before.observation["metadata"]["error"] == "the episode has ended; call reset"
    assert before.observation["metadata"]["task"] is None
    session.reset(split="train", index=0)
    call(session, "end_turn")
    after = session.step(step)
    assert after.done
    assert after.observation["metadata"]["status"] == "error"
    assert after.observation["metadata"]["task"]["name"] == "one-turn"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"split": "nowhere", "index": 0}, "there is no split 'nowhere'; there are: all, eval, train"),
        ({"split": "train", "index": 2}, "index=2 is no task of the split 'train': it has 0 to 1"),
        ({"split": "train", "index": -1}, "index=-1 is no task"),
        ({"split": "train", "index": True}, "index=True is no task"),
        ({"split": "train"}, "give both, or neither"),
        ({"split": "train", "index": 0, "task_id": "@local/other"}, "not @local/other: the row is of another bundle"),
        ({"task_id": "@local/other"}, "there is no task '@local/other'"),
        ({"tool_timeout": -1}, "tool_timeout=-1 must be a number of seconds above 0"),
        ({"reset_timeout": "long"}, "reset_timeout='long' must be a number of seconds"),
    ],
)
def test_a_reset_that_cannot_be_met_is_an_observation(session: Any, keys: dict[str, Any], words: str) -> None:
    refused = session.reset(**keys)
    assert refused.done
    assert refused.reward is None
    assert words in refused.observation["metadata"]["error"]
    assert session.reset(split="train", index=0).observation["metadata"]["prompt"]


def test_what_other_clients_send_is_no_hindrance(session: Any) -> None:
    opened = session.reset(seed=7, episode_id="ours", evaluation=True, row_index=3)
    assert opened.observation["metadata"]["task"]["split"] == "all"
    assert opened.observation["metadata"]["task"]["index"] == 0
    assert session.state()["episode_id"] == "ours"


def test_a_reset_abandons_what_runs(session: Any) -> None:
    session.reset(split="train", index=0)
    call(session, "add", amount=1)
    session.reset(split="train", index=0)
    assert call(session, "peek").observation["result"]["data"] == '{"value": 0}'
    assert session.state()["step_count"] == 1


def test_tools_are_told_before_the_first_reset_where_all_tasks_offer_the_same(serve: Any, changed_counter: Any) -> None:
    """Some of OpenEnv's clients ask for the tools first, and look at nothing else of the answer."""
    bundle = changed_counter()
    for task in ("role", "tool-access"):
        (bundle / "tasks" / f"{task}.json").unlink()
    (bundle / "evals" / "eval.toml").write_text('tasks = ["two-turns"]\n', encoding="utf-8")
    with serve(bundle).session() as session:
        early = session.step({"type": "list_tools"})
        assert early.done
        assert "call reset" in early.observation["metadata"]["error"]
        session.reset(split="train", index=0)
        assert early.observation["tools"] == session.step({"type": "list_tools"}).observation["tools"]
        assert "end_turn" in {tool["name"] for tool in early.observation["tools"]}

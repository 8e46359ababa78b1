"""Evaluations from the plan to the rows, against a model that is a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import Bundle
from agent_env_core.evaluate.evaluation import Evaluation
from agent_env_core.evaluate.results import ResultsError

Ask = Callable[..., list[dict[str, Any]]]
Make = Callable[..., Bundle]
Evaluate = Callable[..., Awaitable[Evaluation]]
Rows = Callable[[], list[dict[str, Any]]]


async def test_an_episode_leaves_a_whole_row(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    scripted_model.says("oh yes")
    evaluation = await evaluate(
        make_bundle({"really": ask("Really?", system_prompt="Be brief.")}), params={"top_p": 0.5}
    )
    (row,) = rows()
    assert (row["task"], row["repeat"], row["outcome"], row["reward"]) == ("really", 0, "passed", 1.0)
    assert row["scores"] == {"grade": 1.0}
    assert row["error"] is None
    assert row["usage"] == {"prompt_tokens": 10, "completion_tokens": 2}
    assert row["verifications"]["g"]["results"][0]["result"] is True
    assert row["timings"]["play"] > 0
    (turn,) = row["turns"]
    assert (turn["reply"], turn["answers"], turn["stopped"], turn["tools"]) == ("oh yes", 1, "", [])
    assert turn["messages"] == [{"role": "user", "content": "Really?"}, {"role": "assistant", "content": "oh yes"}]
    (body,) = scripted_model.requests
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Really?"}]
    assert body["top_p"] == 0.5
    summary = evaluation.summary(1.0)
    assert (summary.outcomes["passed"], summary.score and summary.score.mean) == (1, 1.0)


@pytest.mark.parametrize("context", ["talk", None])
async def test_a_conversation_goes_on_under_one_context_alone(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, context: str | None
):
    steps = ask("One?", "Two?", context_id=context)
    steps[1]["system_prompt"], steps[2]["system_prompt"] = "First.", "Second."
    scripted_model.says("1", "2 yes")
    await evaluate(make_bundle({"t": steps}))
    second = scripted_model.requests[1]["messages"]
    before = [("user", "One?"), ("assistant", "1")] if context else []
    assert [(m["role"], m["content"]) for m in second] == [("system", "Second."), *before, ("user", "Two?")]


async def test_seeds_fill_the_tasks(scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate):
    scripted_model.says("yes")
    await evaluate(make_bundle({"t": ask("Is <who> here?")}), seed={"who": "Ada"})
    assert scripted_model.requests[0]["messages"][-1]["content"] == "Is Ada here?"


async def test_every_task_as_often_as_asked_so_many_at_once(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    both = threading.Barrier(2, timeout=20)

    def together(body: dict[str, Any]) -> str:
        both.wait()
        return "yes" if body["messages"][-1]["content"] == "A?" else "no"

    scripted_model.says(together)
    evaluation = await evaluate(make_bundle({"a": ask("A?"), "b": ask("B?")}), repeat=2, concurrency=2)
    assert sorted((r["task"], r["repeat"], r["outcome"]) for r in rows()) == [
        ("a", 0, "passed"),
        ("a", 1, "passed"),
        ("b", 0, "below_one"),
        ("b", 1, "below_one"),
    ]
    assert scripted_model.busiest == 2
    assert evaluation.summary(1.0).pass_at == {1: (0.5, 2), 2: (0.5, 2)}


async def test_a_model_that_fails_leaves_no_score(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    scripted_model.says(400)
    evaluation = await evaluate(make_bundle({"t": ask("Really?")}))
    (row,) = rows()
    assert (row["outcome"], row["reward"], row["scores"]) == ("failed", None, {})
    assert row["error"]["phase"] == "turn"
    assert "refused by script (400)" in row["error"]["reason"]
    summary = evaluation.summary(1.0)
    assert summary.score is None
    assert summary.pass_at == {}
    assert [(failure.phase, failure.episodes) for failure in summary.failures] == [("turn", 1)]


async def test_a_prompts_deadline_counts(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    release = threading.Event()
    scripted_model.says(lambda body: release.wait(20) and "yes")
    await evaluate(make_bundle({"t": ask("Really?", timeout_seconds=0.3)}))
    release.set()
    (row,) = rows()
    assert row["outcome"] == "failed"
    assert "0.3s" in row["error"]["reason"]


async def test_a_failed_prompt_is_tried_again_from_where_its_task_says(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    again = {"retry_config": {"retry_from_step_id": "agent", "max_retries": 2}}
    scripted_model.says(400, 400, "yes")
    await evaluate(make_bundle({"t": ask("Really?", **again)}))
    (row,) = rows()
    assert (row["outcome"], row["scores"]) == ("passed", {"grade": 1.0})
    assert [(f["step_id"], f["is_fatal"], f["is_retried"]) for f in row["failed_steps"]] == [("ask-1", False, True)] * 2
    assert [len(body["messages"]) for body in scripted_model.requests] == [1, 1, 1]  # each try starts afresh


async def test_tries_are_used_up(scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows):
    scripted_model.says(400)
    await evaluate(make_bundle({"t": ask("Really?", retry_config={"go_to_step_id": "ask-1"})}))
    assert (rows()[0]["outcome"], len(scripted_model.requests)) == ("failed", 2)


async def test_what_depends_on_a_step_that_runs_again_runs_again(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    steps = ask("One?", "Two?", context_id="talk")
    steps[2]["retry_config"] = {"retry_from_step_id": "ask-1", "max_retries": 1}
    look = {"type": "response_contains", "needles": ["1"]}
    first = {"id": "g1", "type": "agent_prompt_response_verifier", "prompt_id": "ask-1", "criteria": [look]}
    steps.insert(2, {**first, "verifier_id": "first"})
    scripted_model.says("0", 400, "1", "yes")
    await evaluate(make_bundle({"t": steps}))
    (row,) = rows()
    assert (row["outcome"], row["scores"]) == ("passed", {"g1": 1.0, "grade": 1.0})
    assert [turn["reply"] for turn in row["turns"]] == ["0", None, "1", "yes"]


async def test_a_tolerated_failure_scores_and_is_in_no_statistic(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    steps = ask("One?", "Two?", context_id="talk")
    steps[1]["fail_task_on_error"] = False
    scripted_model.says(400, "yes")
    evaluation = await evaluate(make_bundle({"t": steps}))
    (row,) = rows()
    assert (row["outcome"], row["scores"]) == ("failed", {"grade": 1.0})
    assert "step 'ask-1' failed" in row["error"]["reason"]
    assert evaluation.summary(1.0).score is None
    assert [m["content"] for m in scripted_model.requests[1]["messages"]] == ["Two?"]  # the failed turn left no history


async def test_several_agents_and_no_verifier(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    both = threading.Barrier(2, timeout=20)
    scripted_model.says(lambda body: both.wait() is not None and "yes")
    second = [
        {"id": "other", "type": "deploy_agent", "agent_name": "b", "depends_on": []},
        {"id": "b", "type": "prompt_agent", "agent_name": "b", "prompt": "You too?", "depends_on": ["other"]},
    ]
    evaluation = await evaluate(
        make_bundle({"graded": ask("You?", more=second), "open": ask("You?", more=second)[:-1]})
    )
    assert {row["task"]: row["outcome"] for row in rows()} == {"graded": "passed", "open": "unscored"}
    assert {turn["agent"] for row in rows() for turn in row["turns"]} == {"default-agent", "b"}
    assert evaluation.summary(1.0).score.episodes == 1  # type: ignore[union-attr]


async def test_a_task_that_cant_be_played_is_a_row_and_stops_nothing(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    scripted_model.says("yes")
    tasks = {"bad": [{"id": "x", "type": "verify_a2a_agent_card"}], "good": ask("Really?")}
    await evaluate(make_bundle(tasks))
    found = {row["task"]: row for row in rows()}
    assert found["good"]["outcome"] == "passed"
    assert (found["bad"]["outcome"], found["bad"]["error"]["phase"]) == ("failed", "prepare")
    assert "verify_a2a_agent_card" in found["bad"]["error"]["reason"]


async def test_a_run_is_gone_on_with(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows, tmp_path: Path
):
    tasks = {"a": ask("A?"), "b": ask("B?"), "c": ask("C?")}
    scripted_model.says(lambda body: 400 if body["messages"][-1]["content"] == "B?" else "yes")
    await evaluate(make_bundle(tasks))
    with pytest.raises(ResultsError, match="--resume"):
        await evaluate(make_bundle(tasks))
    path = tmp_path / "out" / "episodes.jsonl"
    path.write_text(path.read_text() + '{"task_id": "cut o')  # a crash in the middle of a line
    tasks["c"] = ask("C, changed?")
    scripted_model.requests.clear()
    scripted_model.says("yes")
    evaluation = await evaluate(make_bundle(tasks), resume=True)
    assert sorted(body["messages"][-1]["content"] for body in scripted_model.requests) == ["B?", "C, changed?"]
    assert evaluation.summary(1.0).outcomes["passed"] == 3
    assert len(rows()) == 5


async def test_stopping_writes_what_was_under_way_and_leaves_nothing(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    asked, release = threading.Event(), threading.Event()

    def hang(body: dict[str, Any]) -> str:
        asked.set()
        release.wait(20)
        return "yes"

    scripted_model.says(hang)
    running = asyncio.create_task(evaluate(make_bundle({"a": ask("A?"), "b": ask("B?")}), concurrency=1))
    await asyncio.to_thread(asked.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    release.set()
    (row,) = rows()
    assert (row["task"], row["outcome"], row["scores"]) == ("a", "cancelled", {})
    assert row["turns"][0]["messages"] == [{"role": "user", "content": "A?"}]


async def test_rows_are_json_whatever_is_in_them(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    scripted_model.says("yes \u2028 \ud83d\ude00 \x00 \n")
    await evaluate(make_bundle({"t": ask("Really?\n\u2028")}))
    assert json.loads(json.dumps(rows()[0], allow_nan=False))["turns"][0]["reply"].startswith("yes \u2028")


async def test_a_failure_that_was_tolerated_is_told_with_its_own_phase(
    scripted_model: Any, ask: Ask, make_bundle: Make, evaluate: Evaluate, rows: Rows
):
    scripted_model.says("yes")
    steps = ask("Really?")
    steps[-1] |= {"prompt_id": "other", "fail_task_on_error": False}
    await evaluate(make_bundle({"t": steps}))
    (row,) = rows()
    assert (row["outcome"], row["error"]["phase"]) == ("failed", "verify")
    assert row["error"]["reason"].startswith("step 'grade' failed: prompt_id='other': no prompt of that id was sent")

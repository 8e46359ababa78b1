"""Steps that score without an env: replies, aggregates, rubrics."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from agent_env_core.envs.triggers import Firing
from agent_env_core.errors import EpisodeError
from agent_env_core.models import ModelSettings
from agent_env_core.plugins import plugins
from agent_env_core.steps.context import ToolUse, Verification

pytestmark = pytest.mark.asyncio(loop_scope="module")


# -- replies


async def replied(conversation: Any, text: str) -> None:
    conversation.replies = [text]
    await conversation.do("prompt_agent", prompt="Say it.", prompt_id="p")


@pytest.mark.parametrize(
    ("criterion", "passed"),
    [
        ({"type": "response_contains", "needles": ["red", "fox"]}, True),
        ({"type": "response_contains", "needles": ["red", "Fox"]}, False),
        ({"type": "response_regex_present", "pattern": "red.+jumps"}, True),  # a dot matches line ends by default
        ({"type": "response_regex_present", "pattern": "red.+jumps", "flags": []}, False),
        ({"type": "response_regex_present", "pattern": "RED", "flags": ["IGNORECASE"]}, True),
        ({"type": "response_regex_present", "pattern": "^jumps", "flags": ["MULTILINE", "I"]}, True),
    ],
)
async def test_replies(conversation: Any, criterion: dict[str, Any], passed: bool):
    await replied(conversation, "The red fox\njumps.")
    verify = {"prompt_id": "p", "verifier_id": "v", "criteria": [{**criterion, "id": "mine", "weight": 2}]}
    await conversation.do("agent_prompt_response_verifier", **verify)
    found = conversation.run.verifications["v"]
    (row,) = found.results
    assert (found.score, row["score"], row["result"]) == (float(passed), float(passed), passed)
    assert (row["id"], row["weight"], row["criterion_index"]) == ("mine", 2, 0)
    assert row["justification"]


async def test_replies_are_averaged_where_the_step_says_so(conversation: Any):
    await replied(conversation, "red")
    criteria = [
        {"type": "response_contains", "needles": ["red"], "weight": 3},
        {"type": "response_contains", "needles": ["blue"]},
    ]
    verify = {"prompt_id": "p", "verifier_id": "v", "criteria": criteria}
    await conversation.do("agent_prompt_response_verifier", **verify)
    assert conversation.run.verifications["v"].score == 0.0
    await conversation.do("agent_prompt_response_verifier", **verify, score_aggregator="weighted_average")
    assert conversation.run.verifications["v"].score == 0.75


async def test_a_pattern_that_takes_for_ever_is_no_score(conversation: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversation.run.verifiers, "timeout", 0.5)
    await replied(conversation, "a" * 40)
    criteria = [{"type": "response_regex_present", "pattern": "(a+)+b"}]
    with pytest.raises(EpisodeError, match=r"didn't return within 0\.5s") as caught:
        await conversation.do("agent_prompt_response_verifier", prompt_id="p", criteria=criteria)
    assert caught.value.phase == "verify"


async def test_a_prompt_without_a_reply_is_no_score(conversation: Any):
    criteria = [{"type": "response_contains", "needles": ["x"]}]
    with pytest.raises(EpisodeError, match=r"prompt_id='p': no prompt of that id was sent \(sent: none\)"):
        await conversation.do("agent_prompt_response_verifier", prompt_id="p", criteria=criteria)
    conversation.replies = [EpisodeError("turn", "nobody answered")]
    with pytest.raises(EpisodeError):
        await conversation.do("prompt_agent", prompt="go", prompt_id="p")
    for step, fields in (("agent_prompt_response_verifier", {}), ("rubrics_verifier", {"use_agent_judge": False})):
        rubric = [{"id": "a", "criterion": "c"}] if fields else criteria
        with pytest.raises(EpisodeError, match="prompt_id='p': there is no reply to score: turn: nobody answered"):
            await conversation.do(step, prompt_id="p", criteria=rubric, **fields)
    assert conversation.run.verifications == {}


@pytest.mark.parametrize(
    ("criterion", "said"),
    [
        ({"type": "response_smells", "needles": ["x"]}, "criteria.0: input tag 'response_smells'"),
        ({"needles": ["x"]}, "criteria.0: unable to extract tag"),
        ({"type": "response_contains"}, "criteria.0.response_contains.needles is missing"),
        ({"type": "response_contains", "needles": []}, "criteria.0.response_contains.needles: list should have"),
        ({"type": "response_contains", "needles": [""]}, "criteria.0.response_contains.needles.0: string should"),
        ({"type": "response_regex_present", "pattern": ""}, "criteria.0.response_regex_present.pattern: string should"),
        ({"type": "response_regex_present", "pattern": "("}, "the pattern '(' is none: missing ), unterminated"),
        ({"type": "response_regex_present", "pattern": "a", "flags": ["LOUD"]}, "there is no flag 'LOUD'"),
    ],
)
async def test_faults_of_replies(faults: Callable[..., list[str]], criterion: dict[str, Any], said: str):
    (line,) = faults("agent_prompt_response_verifier", prompt_id="p", criteria=[criterion])
    assert said in line


# -- aggregates


async def test_an_aggregate(conversation: Any):
    conversation.run.verifications = {
        "a": Verification(1.0, [{"result": True, "weight": 3}, {"result": False, "skipped": True}]),
        "b": Verification(0.0, [{"result": False}]),
    }
    await conversation.do("aggregate_verifiers", verifier_ids=["a", "b"], verifier_id="sum")
    found = conversation.run.verifications["sum"]
    assert (found.score, found.results, found.details) == (0.75, [], {"source_verifier_ids": ["a", "b"]})
    await conversation.do("aggregate_verifiers", verifier_ids=["a"], verifier_id="one", score_aggregator="all_pass")
    assert conversation.run.verifications["one"].score == 1.0


async def test_an_aggregate_of_what_there_is_not(conversation: Any):
    conversation.run.verifications = {"a": Verification(1.0, [{"result": True}])}
    with pytest.raises(EpisodeError, match=r"verifier_ids names 'b', which has not scored \(scored: 'a'\)"):
        await conversation.do("aggregate_verifiers", verifier_ids=["a", "b"], verifier_id="sum")
    await conversation.do("aggregate_verifiers", verifier_ids=["a"], verifier_id="sum")
    with pytest.raises(EpisodeError, match="'sum', which is an aggregate itself and has no rows"):
        await conversation.do("aggregate_verifiers", verifier_ids=["sum"], verifier_id="more")


async def test_rows_that_an_aggregate_cant_score(conversation: Any):
    conversation.run.verifications = {"a": Verification(1.0, [{"result": "yes", "score": 1.0}])}
    with pytest.raises(EpisodeError, match="result of row 0 must be True or False, and is 'yes'"):
        await conversation.do("aggregate_verifiers", verifier_ids=["a"], score_aggregator="all_pass")


# -- rubrics

RUBRIC = [{"id": "polite", "criterion": "Says please."}, {"id": "rude", "criterion": "Shouts.", "weight": -1}]


def verdict(*scores: float, **more: Any) -> Callable[[dict[str, Any]], str]:
    def answer(body: dict[str, Any]) -> str:
        listing = body["messages"][1]["content"].partition("The criteria:\n")[2]
        keys = [criterion["id"] for criterion in json.JSONDecoder().raw_decode(listing)[0]]
        results = [
            {"id": key, "score": score, "justification": "seen at 1", **more}
            for key, score in zip(keys, scores, strict=True)
        ]
        return json.dumps({"results": results, **more})

    return answer


async def test_a_rubric(conversation: Any, scripted_model: Any):
    use = ToolUse("look", {"at": "door"}, "it is open")
    conversation.replies = [("Please come in.", [use, ToolUse("push", {}, "no such door", "tool")])]
    await conversation.do("prompt_agent", prompt="Open up.", prompt_id="p")
    conversation.run.verifications["cart"] = Verification(0.5, [{"id": "n", "count": 3}])
    conversation.run.metadata["loaded"] = [{"name": "x"}]
    scripted_model.says(verdict(1, 1))
    await conversation.do(
        "rubrics_verifier", prompt_id="p", verifier_id="v", criteria=RUBRIC, use_agent_judge=False,
        score_aggregator="weighted_average", grading_policy_prompt="Kindly.", run_context_for_judge=["conversation"],
        context_facts_for_judge={"in the cart": "verifications.cart.results.0.count", "file": "loaded.0.name",
                                 "lost": "verifications.none.score"},
    )  # fmt: skip
    found = conversation.run.verifications["v"]
    assert found.score == 1.0
    assert [(row["id"], row["result"]) for row in found.results] == [("polite", True), ("rude", True)]
    assert found.details == {
        "format": "rubric_binary", "judge_output_retries": 0, "judge_model": "judge",
        "judge_output_format": "rubric_binary",
    }  # fmt: skip
    (body,) = scripted_model.requests
    shown = body["messages"][1]["content"]
    for text in (
        "Open up.", '[1] tool look {"at": "door"}\n  answered: it is open', "failed (tool): no such door",
        "[3] agent: Please come in.", "- in the cart: 3", '- file: "x"', "- lost: (not available)", "Kindly.",
        '"negative": true', "turn 1, user (human_agent): Open up.",
    ):  # fmt: skip
        assert text in shown
    assert "weight" not in shown


async def test_what_a_judge_is_not_shown(conversation: Any, scripted_model: Any):
    conversation.replies = [("a", [ToolUse("look", {}, "secret")])]
    await conversation.do("prompt_agent", prompt="go", prompt_id="p")
    scripted_model.says(verdict(1, 1))
    judged = {"prompt_id": "p", "criteria": RUBRIC, "use_agent_judge": False}
    await conversation.do("rubrics_verifier", **judged, use_trajectory=False)
    await conversation.do("rubrics_verifier", **judged, trajectory_filter={"include_tool_call_results": False})
    await conversation.do("rubrics_verifier", **judged, trajectory_filter={"include_tool_calls": False})
    first, second, third = (body["messages"][1]["content"] for body in scripted_model.requests)
    assert "look" not in first
    assert "look" in second
    assert "look" not in third
    assert "secret" not in first + second + third


async def test_a_conversation_as_it_stood(conversation: Any, scripted_model: Any):
    conversation.replies = ["first reply", "second reply"]
    scripted_model.says(json.dumps({"message": "and then?", "done": False}), verdict(1, 1))
    await conversation.do("prompt_agent", prompt="go", prompt_id="p", max_conversation_turns=2)
    await conversation.do(
        "rubrics_verifier", prompt_id="p", verifier_id="v", criteria=RUBRIC, grade_up_to_turn=1,
        run_context_for_judge=["conversation", "trigger_log"],
    )  # fmt: skip
    shown = scripted_model.requests[-1]["messages"][1]["content"]
    assert "first reply" in shown
    assert "second reply" not in shown
    assert conversation.run.verifications["v"].details["graded_up_to_turn"] == 1


async def test_a_judge_is_told_what_triggers_did(conversation: Any, scripted_model: Any):
    await replied(conversation, "ok")
    sent = conversation.run.responses[0].sent_at
    conversation.run.firings = [Firing("alarm", "E", "open", "default", sent, sent, None, ())]
    scripted_model.says(verdict(1, 1))
    await conversation.do(
        "rubrics_verifier", prompt_id="p", criteria=RUBRIC, run_context_for_judge=["trigger_log"]
    )  # fmt: skip
    assert "env:E: alarm fired in turn 1, provoked by" in scripted_model.requests[0]["messages"][1]["content"]


async def test_mistakes_are_a_second_score(conversation: Any, scripted_model: Any):
    await replied(conversation, "ok")
    more = {
        "evidence_status": "visible",
        "frame": "1",
        "reasoning": "r",
        "checks": [],
        "botched": False,
        "summary": "s",
    }
    more |= {"findings": [{"severity": "medium", "step": 1, "should": "a", "description": "b"}]}
    scripted_model.says(verdict(1, 0, **more))
    step = {"id": "x", "type": "rubrics_verifier", "prompt_id": "p", "verifier_id": "v", "criteria": RUBRIC}
    made = (
        plugins()
        .step_type("rubrics_verifier")
        .model_validate({**step, "output_format": "rubric_evidence_with_mistakes", "score_aggregator": "any_pass"})
    )
    await made.run(conversation.run)
    scores = {key: found.score for key, found in conversation.run.verifications.items()}
    assert scores == {"v": 1.0, "v-trajectory-mistakes": pytest.approx((1 + 1 + 0) / 3 - 0.08)}
    assert conversation.run.verifications["v"].details["format"] == "rubric_binary"
    assert conversation.run.verifications["v-trajectory-mistakes"].details["source_verifier_id"] == "v"
    await made.undo(conversation.run)
    assert conversation.run.verifications == {}


async def test_a_judge_without_a_verdict_is_no_score(conversation: Any, scripted_model: Any):
    await replied(conversation, "ok")
    for answer in (500, "hm"):
        scripted_model.says(answer)
        with pytest.raises(EpisodeError, match="the judge") as caught:
            await conversation.do("rubrics_verifier", prompt_id="p", criteria=RUBRIC, judge_timeout_seconds=0.5)
        assert caught.value.phase == "verify"
    assert conversation.run.verifications == {}


async def test_the_judge_that_the_host_names_wins(conversation: Any, scripted_model: Any):
    await replied(conversation, "ok")
    scripted_model.says(verdict(1, 1))
    for expected in ("judge", "own"):
        await conversation.do("rubrics_verifier", prompt_id="p", criteria=RUBRIC, default_model="own")
        assert scripted_model.requests[-1]["model"] == expected
        conversation.without_settings()


def make(**fields: Any) -> Any:
    step = {"id": "x", "type": "rubrics_verifier", "prompt_id": "p", "criteria": RUBRIC}
    return plugins().step_type("rubrics_verifier").model_validate({**step, **fields})


async def test_judges_that_cant_be_had():
    assert make().refusals(["default-agent"]) == make(use_agent_judge=True).refusals([]) == []
    assert make(use_agent_judge=False, agent_name="j", judge_a2a_agent_id="x").refusals([]) == []
    fix = "an agent can't be the judge; set use_agent_judge to false, and a model judges"
    assert make(agent_name="j").refusals([]) == [f"agent_name='j': {fix}"]
    assert make(judge_a2a_agent_id="x").refusals([]) == [f"judge_a2a_agent_id='x': {fix}"]
    (line,) = make(trajectory_filter={"compaction_type": "screenshot"}).refusals([])
    assert line.startswith("trajectory_filter.compaction_type='screenshot'")


async def test_a_judge_that_is_missing_is_told_of_before_anything_is_played(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (line,) = make().lacks(ModelSettings())
    assert line.startswith("it needs a model that judges: no API is named; set OPENAI_BASE_URL")
    assert make().lacks(ModelSettings("http://127.0.0.1:1/v1")) == []
    assert make(default_model_api_base="http://127.0.0.1:1/v1").lacks(ModelSettings()) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"criteria": []}, "criteria is empty"),
        ({"criteria": [{"id": "a"}]}, "criteria.0 has no text"),
        ({"output_format": "poem"}, "output_format: input should be 'rubric_binary'"),
        ({"output_format": "trajectory_mistakes", "judge_batch_size": 2}, "judge_batch_size: a verdict of trajectory_"),
        ({"judge_batch_size": 0}, "judge_batch_size: input should be greater"),
        ({"grade_up_to_turn": 0}, "grade_up_to_turn: input should be greater"),
        ({"run_context_for_judge": ["diary"]}, "run_context_for_judge.0: input should be 'conversation'"),
        ({"context_facts_for_judge": {"a": "../x"}}, "context_facts_for_judge: '../x' is no path"),
        ({"output_format": "trajectory_mistakes", "criteria": []}, ""),
    ],
)
async def test_faults_of_rubrics(faults: Callable[..., list[str]], fields: dict[str, Any], said: str):
    found = faults("rubrics_verifier", **{"prompt_id": "p", "criteria": RUBRIC, **fields})
    assert [line[: len(said)] for line in found] == ([said] if said else [])

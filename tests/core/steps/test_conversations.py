"""``prompt_agent`` with more than one turn: conversations, and users that a model plays."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from agent_env_core.envs.clock import VirtualClock
from agent_env_core.envs.triggers import Firing
from agent_env_core.errors import EpisodeError
from agent_env_core.models import ModelSettings
from agent_env_core.plugins import plugins
from agent_env_core.steps.context import PlayedAgent, ToolUse
from agent_env_core.steps.prompt_agent import PromptAgent
from agent_env_core.steps.run_record import run_record
from agent_env_core.verifiers.record import Run, RunRecordUnavailable, read_run

pytestmark = pytest.mark.asyncio(loop_scope="module")


def said(message: str, *, done: bool = False, **fields: Any) -> str:
    return json.dumps({"message": message, "done": done, **fields})


async def test_prompts_of_one_conversation_and_of_none(conversation: Any):
    conversation.replies = ["1", "2", "3", "4"]
    for context_id in ("chat", "chat", None, None):
        await conversation.do("prompt_agent", prompt="go", context_id=context_id)
    first, second, third, fourth = [request.conversation for request in conversation.asked]
    assert first == second == "chat"
    assert len({first, third, fourth}) == 3


async def test_a_user_that_a_model_plays(conversation: Any, scripted_model: Any):
    conversation.run.agents["customer"] = PlayedAgent("customer", system_prompt="You lost your parcel.")
    conversation.replies = [("Which parcel?", [ToolUse("look", {}, "none")]), "It is in Graz."]
    scripted_model.says(said("The red one.", mood="cross"), said("Thanks.", done=True))
    await conversation.do(
        "prompt_agent", prompt="Where is it?", prompt_id="p", system_prompt="Help.", max_conversation_turns=5,
        user_agent_name="customer",
    )  # fmt: skip
    assert [(r.prompt, r.system_prompt) for r in conversation.asked] == [
        ("Where is it?", "Help."), ("The red one.", "Help."),
    ]  # fmt: skip
    assert len({request.conversation for request in conversation.asked}) == 1
    (response,) = conversation.run.responses
    assert (response.prompt, response.response, response.error) == ("Where is it?", "It is in Graz.", "")
    assert [exchange.uses for exchange in response.exchanges] == [(ToolUse("look", {}, "none"),), ()]
    first, second = scripted_model.requests
    assert first["model"] == "user"
    assert "You lost your parcel." in first["messages"][0]["content"]
    assert first["messages"][1:] == [
        {"role": "assistant", "content": said("Where is it?")},
        {"role": "user", "content": "Which parcel?"},
    ]
    assert json.loads(second["messages"][3]["content"]) == {"message": "The red one.", "done": False, "mood": "cross"}
    run = read_run(json.loads(json.dumps(run_record(conversation.run, response))))
    assert [(turn.message.text, turn.message.author) for turn in run.turns] == [
        ("Where is it?", "customer"), ("The red one.", "customer"),
    ]  # fmt: skip
    assert run.turns[1].message.user_sim == {"mood": "cross"}
    assert [turn.reply.text for turn in run.turns if turn.reply] == ["Which parcel?", "It is in Graz."]


async def test_a_conversation_ends_at_its_last_turn(conversation: Any, scripted_model: Any):
    conversation.replies = ["a", "b", "never asked for"]
    scripted_model.says(said("more"))
    await conversation.do("prompt_agent", prompt="go", max_conversation_turns=2)
    assert len(conversation.asked) == 2
    assert len(scripted_model.requests) == 1


async def test_an_empty_reply_ends_a_conversation(conversation: Any, scripted_model: Any):
    conversation.replies = [" "]
    await conversation.do("prompt_agent", prompt="go", max_conversation_turns=9)
    assert scripted_model.requests == []
    assert conversation.run.responses[0].response == " "


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Just words.", "Just words."),
        ("<think>Hm.</think> Just words.", "Just words."),
        ("```json\n" + said("In a fence.") + "\n```", "In a fence."),
        ('"a text"', '"a text"'),
    ],
)
async def test_models_that_keep_to_no_form(conversation: Any, scripted_model: Any, answer: str, message: str):
    conversation.replies = ["a", "b"]
    scripted_model.says(answer)
    await conversation.do("prompt_agent", prompt="go", max_conversation_turns=2)
    assert conversation.asked[1].prompt == message


async def test_a_form_of_the_tasks_own(conversation: Any, scripted_model: Any):
    schema = {"type": "object", "properties": {"message": {"type": "string"}, "done": {"type": "boolean"}, "stars": {}}}
    conversation.replies = ["a"]
    scripted_model.says(said("bye", done=True, stars=5))
    await conversation.do(
        "prompt_agent", prompt="go", max_conversation_turns=2,
        user_output_format={"type": "json_schema", "schema": schema},
    )  # fmt: skip
    assert scripted_model.requests[0]["response_format"]["json_schema"]["schema"] == schema
    assert json.dumps(schema) in scripted_model.requests[0]["messages"][0]["content"]


@pytest.mark.parametrize(("answer", "words"), [(401, "refuses|wants an API key"), ('{"done": false}', "empty message")])
async def test_a_user_that_says_nothing_is_no_fault_of_the_agent(
    conversation: Any, scripted_model: Any, answer: Any, words: str
):
    conversation.replies = ["a"]
    scripted_model.says(answer)
    with pytest.raises(EpisodeError, match=rf"the simulated user said nothing: .*({words})") as caught:
        await conversation.do("prompt_agent", prompt="go", prompt_id="p", max_conversation_turns=3)
    assert caught.value.phase == "turn"
    (response,) = conversation.run.responses
    assert response.response is None
    assert response.exchanges[0].response == "a"
    with pytest.raises(EpisodeError, match="there is no reply to score: turn: the simulated user"):
        conversation.run.answered("p")


async def test_the_model_that_the_host_names_wins(conversation: Any, scripted_model: Any):
    for expected in ("user", "own"):
        conversation.replies = ["a"]
        scripted_model.says(said("bye", done=True))
        await conversation.do("prompt_agent", prompt="go", max_conversation_turns=2, user_model="own")
        assert scripted_model.requests[-1]["model"] == expected
        conversation.without_settings()


def lacks(settings: ModelSettings, **fields: Any) -> list[str]:
    step = (
        plugins().step_type("prompt_agent").model_validate({"id": "x", "type": "prompt_agent", "prompt": "p", **fields})
    )
    return step.lacks(settings)


async def test_a_model_that_is_missing_is_told_of_before_anything_is_played(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    there = ModelSettings("http://127.0.0.1:1/v1")
    assert lacks(there) == []
    assert lacks(there, max_conversation_turns=2) == [
        "max_conversation_turns=2 needs a model that plays the user: none is named; set AGENT_ENV_USER_MODEL,"
        " or use --user-model of `agent-env run`"
    ]
    assert lacks(there, max_conversation_turns=2, user_model="m") == []
    (line,) = lacks(ModelSettings(), max_conversation_turns=2, user_model="m")
    assert "set OPENAI_BASE_URL" in line
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert lacks(ModelSettings(), max_conversation_turns=2, user_model="m") == []


# -- parts and forms


async def test_parts(conversation: Any):
    conversation.replies = ["ok"]
    parts = [{"kind": "text", "text": "Look."}, {"kind": "data", "data": {"a": [1]}}, {"kind": "text", "text": "Well?"}]
    await conversation.do("prompt_agent", parts=parts)
    assert conversation.asked[0].prompt == 'Look.\n\n{\n  "a": [\n    1\n  ]\n}\n\nWell?'
    message = read_run(run_record(conversation.run, conversation.run.responses[0])).turns[0].message
    assert (message.text, message.parts) == ("Look.\nWell?", tuple(parts))


@pytest.mark.parametrize(
    ("reply", "expected"),
    [('{"n": 3}', {"n": 3}), ('```json\n{"n": 3}\n```', {"n": 3}), ('{"n": "x"}', None), ("three", None), ("", None)],
)
async def test_a_reply_in_a_form(conversation: Any, reply: str, expected: Any):
    conversation.replies = [reply]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    await conversation.do("prompt_agent", prompt="n?", output_format={"type": "json_schema", "schema": schema})
    (response,) = conversation.run.responses
    assert (response.response, response.structured_output) == (reply, expected)


async def test_times_are_told_with_their_zone(conversation: Any):
    conversation.replies = ["ok"]
    before = datetime.now(UTC)
    await conversation.do("prompt_agent", prompt="go")
    turn = read_run(json.loads(json.dumps(run_record(conversation.run, conversation.run.responses[0])))).turns[0]
    assert turn.reply is not None
    assert turn.message.sent_at is not None
    assert turn.reply.sent_at is not None
    assert before <= turn.message.sent_at <= turn.reply.sent_at <= datetime.now(UTC)


async def test_defaults():
    step: Any = PromptAgent.model_validate({"id": "x", "type": "prompt_agent", "prompt": ""})
    assert (step.max_conversation_turns, step.user_agent_name, step.user_agent_timeout_seconds) == (
        1,
        "human_agent",
        600,
    )


async def test_what_the_envs_clocks_say_and_what_their_triggers_do(conversation: Any):
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    told = SimpleNamespace(env=SimpleNamespace(name="quay"), clock=VirtualClock(noon, 0.0), triggers=object())
    plain = SimpleNamespace(env=SimpleNamespace(name="hut"), clock=None, triggers=None)
    conversation.run.envs = {"Q": told, "H": plain}
    conversation.replies = ["one", "two"]
    await conversation.do("prompt_agent", prompt="go", prompt_id="first")
    at = datetime.now(UTC)
    conversation.run.firings = [
        Firing("alarm", "Q", "open", "default", at, at, noon, (), error="broke"),
    ]
    await conversation.do("prompt_agent", prompt="on", prompt_id="second")
    late = datetime.now(UTC)
    conversation.run.firings.append(Firing("late", "Q", "open", "default", late, late, None, ()))

    def record(prompt_id: str) -> Run:
        return read_run(json.loads(json.dumps(run_record(conversation.run, conversation.run.response(prompt_id)))))

    first, second = record("first"), record("second")
    assert first.turns[0].message.env_clock == {"Q": noon, "H": None}
    (alarm,) = first.firings(env="quay")
    assert (alarm.trigger_id, alarm.source, alarm.turn, alarm.ok, alarm.virtual_time) == (
        "alarm",
        "env:Q",
        1,
        False,
        noon,
    )
    assert alarm.provoked_by == {"tool": "open", "role": "default", "at": at.isoformat()}
    assert [(f.trigger_id, f.turn) for f in second.firings()] == [("alarm", 0), ("late", 1)]
    with pytest.raises(RunRecordUnavailable, match="env:hut: no triggers were registered"):
        first.firings(env="hut")

"""How a model plays one turn: its calls are made or answered, and its limits end the turn, not the run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from agent_env_core.envs.results import Tool, ToolResult, failed
from agent_env_core.errors import ContextTooLong, EpisodeError, ModelError
from agent_env_core.evaluate.player import MAX_RESULT, Player
from agent_env_core.models import Completion, Message, ToolCall, Usage
from agent_env_core.steps.prompt_agent import PromptAgent

SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer"}}}


class Model:
    """Gives answers: a text, calls, or an error to raise. Keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def complete(self, messages: list[Message], **options: Any) -> Completion:
        self.asked.append({"messages": [dict(message) for message in messages], **options})
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text, calls, reason = answer if isinstance(answer, tuple) else (answer, [], "stop")
        made = tuple(ToolCall(f"c{at}", name, given) for at, (name, given) in enumerate(calls))
        message: Message = {"role": "assistant", "content": text}
        return Completion(text, made, Usage(5, 1), reason, message)


class Tools:
    """Answers calls by name; keeps them."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.results = results
        self.calls: list[tuple[str, Any]] = []

    async def list(self) -> tuple[Tool, ...]:
        return tuple(Tool(name, f"Does {name}.", SCHEMA, "env") for name in self.results)

    async def call(self, name: str, arguments: Any, *, timeout: float) -> ToolResult:
        self.calls.append((name, arguments))
        found = self.results.get(name, failed("unknown", f"there is no tool {name!r}"))
        if isinstance(found, Exception):
            raise found
        return found if isinstance(found, ToolResult) else ToolResult(({"type": "text", "text": found},))


class Turn:
    """A turn without an episode."""

    def __init__(self, tools: Tools, prompt: str = "Go.", conversation: str = "x") -> None:
        self.step_id, self.agent, self.number, self.of = "play", "a", 1, 1
        self.prompt, self.system_prompt, self.conversation = prompt, None, conversation
        self.reply: str | None = None
        self.error: EpisodeError | None = None
        self._tools = tools

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[Tools]:
        yield self._tools

    async def end(self, reply: str) -> None:
        self.reply = reply

    def fail(self, error: EpisodeError) -> None:
        self.error = error


def player(model: Model, **options: Any) -> Player:
    fields = {key: options.pop(key) for key in ("max_turns", "model_params", "output_format") if key in options}
    step = PromptAgent(id="play", type="prompt_agent", prompt="Go.", **fields)
    return Player(SimpleNamespace(steps=(step,), turn_timeout=None), model, **options)  # type: ignore[arg-type]


def calls(*made: tuple[str, str], say: str = "") -> tuple[str, list[tuple[str, str]], str]:
    return say, list(made), "tool_calls"


async def play(model: Model, tools: Tools, **options: Any) -> tuple[Turn, Any]:
    playing = player(model, **options)
    turn = Turn(tools)
    await playing.play(turn)  # type: ignore[arg-type]
    return turn, playing.turns[0]


async def test_calls_are_made_in_order_and_answered_by_their_ids():
    model = Model(calls(("add", '{"amount": 1}'), ("peek", ""), ("add", '{"amount": 2}')), "done")
    tools = Tools({"add": "added", "peek": "3"})
    turn, record = await play(model, tools)
    assert tools.calls == [("add", {"amount": 1}), ("peek", {}), ("add", {"amount": 2})]
    told = [(m["tool_call_id"], m["content"]) for m in model.asked[1]["messages"] if m["role"] == "tool"]
    assert told == [("c0", "added"), ("c1", "3"), ("c2", "added")]
    assert (turn.reply, record.answers, record.usage) == ("done", 2, Usage(10, 2))
    assert model.asked[0]["tools"][0] == {
        "type": "function",
        "function": {"name": "add", "description": "Does add.", "parameters": SCHEMA},
    }


@pytest.mark.parametrize(
    ("arguments", "why"),
    [('{"amount": ', "no JSON at character 11"), ("[1]", "of type list"), ("3", "of type int"), ("[" * 100_000, "")],
)
async def test_arguments_that_are_none_can_be_mended(arguments: str, why: str):
    tools = Tools({"add": "added"})
    model = Model(calls(("add", arguments)), calls(("add", '{"amount": 1}')), "done")
    turn, record = await play(model, tools)
    assert (turn.reply, tools.calls) == ("done", [("add", {"amount": 1})])
    assert [use.failure for use in record.calls] == ["malformed", ""]
    assert "must be a JSON object" in record.calls[0].result
    assert why in record.calls[0].result
    json.dumps(record.calls[0].arguments)


async def test_what_a_tool_refuses_is_told_to_the_model():
    tools = Tools({"add": failed("tool", "too much"), "shout": failed("refused", "Error: not for you")})
    _, record = await play(Model(calls(("add", "{}"), ("shout", "{}"), ("fly", "{}")), "ok"), tools)
    assert [(use.failure, use.result) for use in record.calls] == [
        ("tool", "Error: too much"),
        ("refused", "Error: not for you"),
        ("unknown", "Error: there is no tool 'fly'"),
    ]


async def test_long_results_lose_their_middle_and_pictures_are_named():
    picture = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    long = ToolResult(({"type": "text", "text": "a" * MAX_RESULT + "b" * MAX_RESULT}, picture))
    _, record = await play(Model(calls(("look", "{}")), "ok"), Tools({"look": long}))
    shown = record.calls[0].result
    assert len(shown) < MAX_RESULT + 100
    assert shown.startswith("aaa")
    assert "characters left out" in shown
    assert shown.endswith("[image/png, which can't be shown]")


async def test_the_last_answer_calls_nothing():
    model = Model(calls(("add", "{}")), calls(("add", "{}"), say="I stop."))
    turn, record = await play(model, Tools({"add": "added"}), max_turns=2)
    assert (turn.reply, record.stopped, record.answers) == ("I stop.", "rounds", 2)
    assert [use.failure for use in record.calls] == ["", "limit"]
    assert (model.asked[0]["tool_choice"], model.asked[1]["tool_choice"]) == (None, "none")


async def test_the_users_limit_counts_where_it_is_lower():
    model = Model(calls(("add", "{}")), "ok")
    _, record = await play(model, Tools({"add": "added"}), max_turns=50, max_answers=2)
    assert record.answers == 2
    assert model.asked[1]["tool_choice"] == "none"


@pytest.mark.parametrize(("reason", "stopped"), [("length", "length"), ("content_filter", "filter"), ("stop", "")])
async def test_why_a_turn_ended(reason: str, stopped: str):
    turn, record = await play(Model(("half a sen", [], reason)), Tools({}))
    assert (turn.reply, record.stopped) == ("half a sen", stopped)


async def test_a_context_that_fills_up_ends_the_turn_and_not_the_run():
    model = Model(calls(("add", "{}"), say="thinking"), ContextTooLong("too long"))
    turn, record = await play(model, Tools({"add": "added"}))
    assert (turn.reply, turn.error, record.stopped) == ("thinking", None, "context")


async def test_a_prompt_that_no_context_holds_fails():
    turn, record = await play(Model(ContextTooLong("too long")), Tools({}))
    assert turn.reply is None
    assert turn.error is not None
    assert (turn.error.phase, turn.error.retryable) == ("turn", False)
    assert "too long" in record.error


@pytest.mark.parametrize("error", [ModelError("busy", retryable=True), RuntimeError("a bug")])
async def test_what_goes_wrong_fails_the_turn(error: Exception):
    turn, record = await play(Model(calls(("add", "{}")), error), Tools({"add": "added"}))
    assert turn.error is not None
    assert (turn.error.phase, turn.error.retryable) == ("turn", isinstance(error, ModelError))
    assert [message["role"] for message in record.messages] == ["user", "assistant", "tool"]


async def test_an_env_that_breaks_is_told_as_its_own():
    turn, _ = await play(Model(calls(("add", "{}"))), Tools({"add": EpisodeError("tool", "gone", retryable=True)}))
    assert turn.error is not None
    assert str(turn.error) == "tool: gone"


async def test_what_the_task_asks_of_the_model_and_the_user_wins():
    form = {"type": "json_schema", "schema": {"type": "object"}}
    model = Model("{}")
    await play(
        model, Tools({}), model_params={"temperature": 1, "top_p": 0.9}, output_format=form, params={"temperature": 0}
    )
    assert model.asked[0]["params"] == {"temperature": 0, "top_p": 0.9}
    assert model.asked[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "reply", "schema": {"type": "object"}},
    }


@pytest.mark.parametrize("offer", [True, False])
async def test_a_model_that_learned_to_end_its_turn_may(offer: bool):
    model = Model(calls(("add", '{"amount": 1}'), ("end_turn", '{"response": "I am done."}'), say="thinking"))
    tools = Tools({"add": "added"})
    turn, record = await play(model, tools, end_turn=offer)
    assert (turn.reply, tools.calls) == ("I am done.", [("add", {"amount": 1})])
    assert record.tools == (["add", "end_turn"] if offer else ["add"])


async def test_an_env_keeps_its_own_end_turn():
    tools = Tools({"end_turn": "the other side moves"})
    turn, record = await play(Model(calls(("end_turn", "{}")), "ok"), tools, end_turn=True)
    assert (turn.reply, record.tools, tools.calls) == ("ok", ["end_turn"], [("end_turn", {})])


async def test_cancelling_keeps_what_was_said():
    never = asyncio.Event()

    class Hangs(Model):
        async def complete(self, messages: list[Message], **options: Any) -> Completion:
            if self.asked:
                await never.wait()
            return await super().complete(messages, **options)

    playing = player(Hangs(calls(("add", "{}"))))
    task = asyncio.create_task(playing.play(Turn(Tools({"add": "added"}))))  # type: ignore[arg-type]
    while not playing.turns or not playing.turns[0].calls:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [message["role"] for message in playing.turns[0].messages] == ["user", "assistant", "tool"]

"""A model plays the turns of an episode: it is asked, its tool calls are made, until it has nothing more to call."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agent_env_core.envs.results import ToolResult
from agent_env_core.errors import ContextTooLong, episode_error
from agent_env_core.evaluate.record import Stopped, ToolUse, TurnRecord
from agent_env_core.models import Completion, Message, ToolCall
from agent_env_core.play.end_turn import END_TURN
from agent_env_core.steps.prompt_agent import PromptAgent

if TYPE_CHECKING:
    from agent_env_core.play.spec import EpisodeSpec
    from agent_env_core.play.turn import Turn, TurnTools

MAX_ANSWERS = 100
"""Answers a model may give in one turn, where neither the task nor the user says how many."""
TOOL_TIMEOUT = 600.0
"""Seconds one tool call may take, within what is left of the turn."""
MAX_RESULT = 64 * 1024
"""Characters of a tool's result that the model is shown; more than that, and its middle is left out."""

_FILTERED = ("content_filter", "safety")


class Answers(Protocol):
    """What gives the answers: a :class:`~agent_env_core.models.ChatModel`, or a script."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout: float = 600.0,
    ) -> Completion:
        """The answer to a conversation."""


@dataclass
class Player:
    """Plays one episode. Turns of one conversation share their history; every other turn starts afresh.

    Attributes:
        spec: The episode's task.
        model: Gives the answers.
        params: Fields of every request; they win over what the task's prompts ask for.
        max_answers: Answers a turn may take; a prompt's own ``max_turns`` wins where it is lower.
        end_turn: Whether to offer the tool ``end_turn``, as trainers do. A model that learned it may call it anyhow.
        turns: The turns so far.
    """

    spec: EpisodeSpec
    model: Answers
    params: Mapping[str, Any] = field(default_factory=dict)
    max_answers: int = MAX_ANSWERS
    end_turn: bool = False
    turns: list[TurnRecord] = field(default_factory=list)
    _histories: dict[tuple[str, str], list[Message]] = field(default_factory=dict)

    async def play(self, turn: Turn) -> None:
        """Plays ``turn`` and ends it. What goes wrong with the model or in here fails the turn, and so its step."""
        record = TurnRecord(turn.step_id, turn.agent, turn.number, turn.of, turn.conversation, turn.system_prompt)
        self.turns.append(record)
        history = self._history(turn)
        began = len(history)
        history.append({"role": "user", "content": turn.prompt})
        try:
            async with turn.tools() as tools:
                reply = await _Round(self, turn, record, history, tools).run()
        except asyncio.CancelledError:
            record.messages = history[began:]
            raise
        except Exception as exc:
            error = episode_error(exc, "turn")
            record.error = str(error)
            record.messages = history[began:]
            del history[began:]  # it may lack answers to tool calls, and no model could go on from there
            turn.fail(error)
        else:
            record.reply = reply
            record.messages = history[began:]
            await turn.end(reply)

    def step(self, step_id: str) -> PromptAgent | None:
        """The prompt step of that id."""
        found = next((step for step in self.spec.steps if step.id == step_id), None)
        return found if isinstance(found, PromptAgent) else None

    def _history(self, turn: Turn) -> list[Message]:
        """The conversation so far, under the system prompt now in force."""
        history = self._histories.setdefault((turn.agent, turn.conversation), [])
        if history and history[0]["role"] == "system":
            del history[0]
        if turn.system_prompt:
            history.insert(0, {"role": "system", "content": turn.system_prompt})
        return history


class _Round:
    """The rounds of one turn."""

    def __init__(
        self, player: Player, turn: Turn, record: TurnRecord, history: list[Message], tools: TurnTools
    ) -> None:
        step = player.step(turn.step_id)
        self._model = player.model
        self._record = record
        self._history = history
        self._tools = tools
        self._timeout = step.timeout_seconds if step else TOOL_TIMEOUT
        self._deadline = time.monotonic() + (player.spec.turn_timeout or self._timeout)
        self._params = {**(step.model_params if step else {}), **player.params}
        self._answers = min(player.max_answers, (step and step.max_turns) or player.max_answers)
        self._offer_end = player.end_turn
        self._can_end = True
        self._ended: str | None = None  # the response of an end_turn
        self._form = _form(step.output_format) if step and step.output_format else None

    async def run(self) -> str:
        """Plays; returns the reply."""
        offered = await self._tools.list()
        functions = [_function(tool.name, tool.description, tool.input_schema) for tool in offered]
        self._can_end = all(tool.name != END_TURN["name"] for tool in offered)
        if self._offer_end and self._can_end:
            functions.append(_function(**END_TURN))
        self._record.tools = [function["function"]["name"] for function in functions]
        reply = ""
        while True:
            last = self._record.answers + 1 >= self._answers
            try:
                answer = await self._ask(functions, last=last)
            except ContextTooLong:
                if not self._record.answers:
                    raise  # it is the prompt that is too long: no model could play this
                self._record.stopped = "context"
                return reply
            reply = answer.text or reply
            if not answer.tool_calls:
                self._record.stopped = _stopped(answer.finish_reason)
                return reply
            for call in answer.tool_calls:
                use = await self._use(call) if not last or self._is_end(call) else _unused(call, self._answers)
                self._record.calls.append(use)
                self._history.append({"role": "tool", "tool_call_id": call.id, "content": use.result})
            if self._ended is not None:
                return self._ended or reply
            if last:
                self._record.stopped = "rounds"
                return reply

    async def _ask(self, functions: Sequence[Mapping[str, Any]], *, last: bool) -> Completion:
        began = time.monotonic()
        try:
            answer = await self._model.complete(
                self._history,
                tools=functions or None,
                tool_choice="none" if last and functions and self._record.answers else None,
                response_format=self._form,
                params=self._params,
                timeout=self._left(),
            )
        finally:
            self._record.model_seconds += time.monotonic() - began
        self._record.answers += 1
        self._record.usage += answer.usage
        self._history.append(answer.message)
        return answer

    async def _use(self, call: ToolCall) -> ToolUse:
        """Makes a call; one that can't be made is answered so that the model can mend it."""
        try:
            arguments = json.loads(call.arguments or "{}")
            if not isinstance(arguments, dict):
                raise ValueError(f"they are of type {type(arguments).__name__}")
        except (ValueError, RecursionError) as exc:
            said = f"{call.name} was not called: its arguments must be a JSON object, and {_why(exc)}"
            return ToolUse(call.name, call.arguments, "malformed", said)
        if self._is_end(call):
            self._ended = str(arguments.get("response") or "")
            return ToolUse(call.name, arguments)
        began = time.monotonic()
        result = await self._tools.call(call.name, arguments, timeout=min(TOOL_TIMEOUT, self._left()))
        spent = time.monotonic() - began
        return ToolUse(call.name, arguments, result.failure, _shown(result), round(spent, 4))

    def _is_end(self, call: ToolCall) -> bool:
        return call.name == END_TURN["name"] and self._can_end

    def _left(self) -> float:
        """Seconds left of the turn; the episode ends it when there are none."""
        return max(0.1, self._deadline - time.monotonic())


def _function(name: str, description: str, input_schema: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(input_schema) or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _form(output_format: Mapping[str, Any]) -> dict[str, Any]:
    """The API's words for the form that a prompt wants its reply in."""
    schema = {"name": "reply", "schema": output_format["schema"]}
    return {"type": "json_schema", "json_schema": schema}


def _why(exc: Exception) -> str:
    if isinstance(exc, json.JSONDecodeError):
        return f"they are no JSON at character {exc.pos}: {exc.msg}"
    return str(exc) if isinstance(exc, ValueError) else "they are nested too deep"


def _unused(call: ToolCall, answers: int) -> ToolUse:
    said = f"{call.name} was not called: this turn may take {answers} {'answer' if answers == 1 else 'answers'}"
    return ToolUse(call.name, call.arguments, "limit", said)


def _stopped(finish_reason: str) -> Stopped:
    if finish_reason == "length":
        return "length"
    return "filter" if finish_reason in _FILTERED else ""


def _shown(result: ToolResult) -> str:
    """What the model is told of a result. Chat completions take text only, so of the rest it is told the kind."""
    parts = [
        block["text"]
        if block["type"] == "text"
        else f"[{block.get('mimeType') or block['type']}, which can't be shown]"
        for block in result.content
    ]
    text = "\n".join(parts)
    if len(text) > MAX_RESULT:
        half = MAX_RESULT // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
    return f"Error: {text}" if result.is_error and not text.lower().startswith("error") else text

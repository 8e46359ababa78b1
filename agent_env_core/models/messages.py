"""What is said to a model and what it answers, in the words of OpenAI's chat completions.

The wire format is https://platform.openai.com/docs/api-reference/chat; servers that call themselves compatible leave
fields out, so only what a caller can't do without is insisted on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
"""One entry of a conversation, as the wire has it: ``role``, ``content`` and what belongs to the role."""

THOUGHT = ("reasoning_content", "reasoning")
"""Where compatible servers put what a model thinks. It goes back to the server within a round of tool calls, since
models that think between calls lose their thread without it."""


class MalformedAnswer(ValueError):
    """A body that is no chat completion; the message says what is wrong with it."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call that a model asks for.

    Attributes:
        id: What the tool's answer must name.
        name: The tool.
        arguments: Its arguments as the model wrote them: text that should be a JSON object, and may not be.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens read and written, as the server counts them; 0 where it doesn't."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)


@dataclass(frozen=True)
class Completion:
    """A model's answer.

    Attributes:
        text: What it says; empty where it only calls tools.
        tool_calls: The calls it asks for, in its order.
        usage: Tokens.
        finish_reason: Why it stopped: ``stop``, ``length``, ``tool_calls``, or a server's own word.
        message: The answer as an entry of the conversation, to be sent back with the next request.
    """

    text: str
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    finish_reason: str
    message: Message


def read_completion(body: Any) -> Completion:
    """A server's answer.

    Raises:
        MalformedAnswer: It is none.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    said = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(said, dict):
        raise MalformedAnswer("it has no choices[0].message")
    calls = _calls(said.get("tool_calls"))
    text = _text(said.get("content"))
    message: Message = {"role": "assistant", "content": text if text or not calls else None}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
        message |= {key: said[key] for key in THOUGHT if isinstance(said.get(key), str)}
    return Completion(text, calls, _usage(body.get("usage")), str(choice.get("finish_reason") or "stop"), message)


def _text(content: Any) -> str:
    """A message's text: some servers answer in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    raise MalformedAnswer(f"its content is of type {type(content).__name__}")


def _calls(given: Any) -> tuple[ToolCall, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise MalformedAnswer("its tool_calls is no list")
    calls: list[ToolCall] = []
    for at, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise MalformedAnswer(f"its tool_calls[{at}] names no function")
        calls.append(ToolCall(str(call.get("id") or f"call_{at}"), function["name"], _arguments(function)))
    return tuple(calls)


def _arguments(function: Mapping[str, Any]) -> str:
    """The arguments as text; a few servers send the object itself."""
    given = function.get("arguments")
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


def _usage(given: Any) -> Usage:
    def count(name: str) -> int:
        value = given.get(name) if isinstance(given, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    return Usage(count("prompt_tokens"), count("completion_tokens"))

"""Answers that a bundle brings, played in a model's place: a demonstration, and a check that its tasks can be solved.

``demo.json`` in the bundle's folder holds, by task name, the answers of one episode in order: objects with ``say`` (a
text), ``calls`` (a list of ``{"name", "arguments"}``), or both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agent_env_core.bundle import Bundle
from agent_env_core.errors import BundleError, ModelError, Problem
from agent_env_core.models import Completion, Message, ToolCall, Usage

FILE = "demo.json"
NAME = "scripted"
"""The name under which a script is chosen as a model."""
MAX_BYTES = 8 * 1024 * 1024


class _Call(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    say: str = ""
    calls: list[_Call] = Field(default_factory=list)


_Scripts = TypeAdapter(dict[str, list[_Answer]])


class Script:
    """The answers of one episode, given one after another, whatever is asked; then nothing but silence."""

    def __init__(self, answers: Sequence[_Answer]) -> None:
        self._answers = iter(answers)
        self._calls = 0

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
        """The next answer."""
        answer = next(self._answers, _Answer())
        calls = []
        for call in answer.calls:
            self._calls += 1
            calls.append(ToolCall(f"call_{self._calls}", call.name, json.dumps(call.arguments, ensure_ascii=False)))
        message: Message = {"role": "assistant", "content": answer.say or None if calls else answer.say}
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        return Completion(answer.say, tuple(calls), Usage(), "tool_calls" if calls else "stop", message)


class Scripts:
    """The scripts of a bundle.

    Args:
        bundle: The bundle.

    Raises:
        BundleError: Its ``demo.json`` isn't there, or isn't one.
    """

    def __init__(self, bundle: Bundle) -> None:
        path = bundle.root / FILE
        try:
            data = path.read_bytes()
        except OSError as exc:
            fix = f"--model {NAME} plays what that file says; name another model"
            raise BundleError(str(bundle.root), [Problem(FILE, f"can't be read: {exc.strerror}", fix)]) from exc
        if len(data) > MAX_BYTES:
            raise BundleError(str(bundle.root), [Problem(FILE, f"is larger than {MAX_BYTES:,} bytes")])
        try:
            self._scripts = _Scripts.validate_json(data)
        except ValidationError as exc:
            problems = [Problem(f"{FILE}:{'.'.join(map(str, e['loc']))}", e["msg"].lower()) for e in exc.errors()]
            raise BundleError(str(bundle.root), problems) from exc

    def of(self, task: str) -> Script:
        """A fresh script for an episode of a task.

        Raises:
            ModelError: There is none for it.
        """
        if task not in self._scripts:
            raise ModelError(
                f"{FILE} has no answers for the task {task!r}; it has some for: {', '.join(self._scripts)}"
            )
        return Script(self._scripts[task])


def has_script(root: Path) -> bool:
    """Whether the bundle in a folder brings a script."""
    return (root / FILE).is_file()

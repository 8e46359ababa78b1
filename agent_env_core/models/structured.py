"""Answers in a form: a model is asked for JSON by schema, and what it says is read as that and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env_core.errors import ContextTooLong, ModelError
from agent_env_core.models.chat import ChatModel
from agent_env_core.models.messages import Completion, Message

_FENCED = re.compile(r"```[a-zA-Z]*\s*\n(.*)\n\s*```", re.DOTALL)
_THOUGHT_ENDS = "</think>"
_FORM_REFUSED = re.compile(r"response_format|json_schema|guided|structured|schema", re.IGNORECASE)


async def complete_json(
    model: ChatModel, messages: Sequence[Message], schema: Mapping[str, Any], *, name: str, timeout: float
) -> Completion:
    """A model's answer, asked for in the form of ``schema``. Where the server knows no such forms, it is asked without.

    Whether the answer keeps to the form is for the caller to see; the messages must ask for it in words too.

    Args:
        model: The model.
        messages: The conversation.
        schema: A JSON schema of an object.
        name: What the form is called.
        timeout: Seconds, all tries together.

    Raises:
        ModelError: There is no answer.
    """
    form = {"type": "json_schema", "json_schema": {"name": name, "schema": dict(schema)}}
    try:
        return await model.complete(messages, response_format=form, timeout=timeout)
    except ContextTooLong:
        raise
    except ModelError as exc:
        if exc.retryable or not _FORM_REFUSED.search(str(exc)):
            raise
        return await model.complete(messages, timeout=timeout)


def read_json(text: str) -> Any:
    """An answer that is one JSON value. It may stand in a code fence, or behind a model's thoughts, and that is all.

    Nothing is fished out of prose: what a model quotes is not what it says. Strict JSON: no key twice, no ``NaN``.

    Raises:
        ValueError: It is something else.
    """
    if _THOUGHT_ENDS in text:
        try:
            return _strict(text)
        except ValueError:
            text = text.rpartition(_THOUGHT_ENDS)[2]
    return _strict(text)


def _strict(text: str) -> Any:
    text = text.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[1]
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")

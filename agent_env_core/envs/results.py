"""Tools and what a call to one comes to, as a turn hands them on: bounded, whatever a server sends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

MAX_TEXT = 1024 * 1024
"""Bytes of text that one result carries at most."""
MAX_OTHER = 8 * 1024 * 1024
"""Bytes of everything else, e.g. pictures, that one result carries at most."""

Failure = Literal["", "tool", "refused", "unknown"]
"""Why a call failed: not at all, the tool itself, the access rules, or there is no such tool."""


@dataclass(frozen=True)
class Tool:
    """A tool that a turn offers, as its server's ``tools/list`` describes it.

    Attributes:
        name: Its name.
        description: What it does; may be empty.
        input_schema: The JSON Schema of its arguments.
        server: The name of the env that has it.
        hidden: Whether it is hidden until an access rule names it.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    server: str
    hidden: bool = False


@dataclass(frozen=True)
class ToolResult:
    """What a call came to. A tool that fails is a result; only a broken env raises.

    Attributes:
        content: MCP content blocks, at most :data:`MAX_TEXT` bytes of text and :data:`MAX_OTHER` bytes of the rest.
        failure: Why it failed, or empty.
    """

    content: tuple[Mapping[str, Any], ...]
    failure: Failure = ""

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return bool(self.failure)

    @property
    def text(self) -> str:
        """The text blocks, a line each."""
        return "\n".join(block["text"] for block in self.content if block["type"] == "text")


def failed(failure: Failure, text: str) -> ToolResult:
    """A result of one text block that says why a call failed."""
    return ToolResult(tuple(bounded([{"type": "text", "text": text}])), failure)


def read_result(result: Mapping[str, Any]) -> ToolResult:
    """A server's ``tools/call`` result.

    Raises:
        ValueError: It is none.
    """
    content = result.get("content", [])
    if not isinstance(content, list):
        raise ValueError("its content is no list")
    for block in content:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise ValueError("its content has a block without a type")
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise ValueError("its content has a text block without text")
    return ToolResult(tuple(bounded(content)), "tool" if result.get("isError") is True else "")


def bounded(content: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The blocks, cut to the limits; what was left out is said in its place."""
    kept: list[Mapping[str, Any]] = []
    text_left, other_left = MAX_TEXT, MAX_OTHER
    for block in content:
        if block["type"] == "text":
            data = block["text"].encode(errors="replace")  # half a surrogate pair couldn't be sent on
            text = data[:text_left].decode(errors="ignore")
            if len(data) > text_left:
                text += f"\n[{len(data) - text_left} bytes of text left out]"
            block = {**block, "text": text}
            text_left = max(0, text_left - len(data))
        else:
            size = len(json.dumps(block))
            if size > other_left:
                block = {"type": "text", "text": f"[{block['type']} of {size} bytes left out]"}
            else:
                other_left -= size
        kept.append(block)
    return kept

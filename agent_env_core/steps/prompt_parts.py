"""A prompt's parts as one text, for players who are prompted by text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def part_faults(parts: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """What is wrong with parts by the format: one line each."""
    if not parts:
        yield "parts is empty"
    for number, part in enumerate(parts):
        kind = part.get("kind")
        if kind not in ("text", "data", "file"):
            yield f"parts.{number}.kind: should be 'text', 'data' or 'file', not {kind!r}"
        elif kind == "text" and not isinstance(part.get("text"), str):
            yield f"parts.{number}.text: should be a text, not {part.get('text')!r}"
        elif kind == "data" and not isinstance(part.get("data"), Mapping):
            yield f"parts.{number}.data: should be an object, not {part.get('data')!r}"
        elif kind == "file" and not isinstance(part.get("file"), Mapping):
            yield f"parts.{number}.file: should be an object, not {part.get('file')!r}"


def files_among(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the files among parts: no text can stand for them."""
    return [
        str(part["file"].get("name") or part["file"].get("uri") or f"parts.{number}")
        for number, part in enumerate(parts)
        if part.get("kind") == "file"
    ]


def parts_text(parts: Iterable[Mapping[str, Any]]) -> str:
    """Text parts as they are and data parts as JSON, an empty line between any two."""
    return "\n\n".join(
        part["text"] if part["kind"] == "text" else json.dumps(part["data"], ensure_ascii=False, indent=2)
        for part in parts
    )

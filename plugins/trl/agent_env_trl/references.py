"""Follows the references of a JSON Schema, and merges what it puts together.

Both drafts that MCP servers write are read: ``$defs`` and ``definitions``, tuples as ``prefixItems`` and as a list of
``items``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

CHAIN = 32
"""How many references may lead from one to the next before they count as a circle."""
TYPED = frozenset({
    "type", "enum", "const", "anyOf", "oneOf", "properties", "items", "prefixItems", "additionalProperties", "nullable",
})  # fmt: skip
"""Keywords that say what kind of value a schema takes."""


@dataclass(frozen=True)
class Followed:
    """A schema without ``$ref`` and ``allOf`` at its top.

    Attributes:
        schema: Its keywords.
        refs: The references that led to it. A schema that contains itself has one of them again below.
    """

    schema: Mapping[str, Any]
    refs: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """What the place it is defined at is called; empty where it is no definition."""
        return self.refs[-1].rpartition("/")[2] if self.refs and _is_definition(self.refs[-1]) else ""


def _is_definition(reference: str) -> bool:
    return reference.startswith(("#/$defs/", "#/definitions/")) and reference.count("/") == 2


def follow(root: Mapping[str, Any], schema: Any) -> Followed:
    """``schema`` itself, its ``$ref`` replaced by what it points to in ``root`` and its ``allOf`` merged.

    Raises:
        ValueError: A reference leads nowhere, goes in a circle, or points outside of ``root``.
    """
    if not isinstance(schema, Mapping):
        return Followed({"not": {}} if schema is False else {})  # true and false are schemas too
    found: Mapping[str, Any] = schema
    refs: list[str] = []
    while "$ref" in found:
        reference = found["$ref"]
        beside = {key: value for key, value in found.items() if key != "$ref"}
        found = merged(beside, _pointed(root, reference))
        refs.append(reference)
        if len(refs) > CHAIN:
            raise ValueError(f"the reference {reference!r} goes in a circle")
    parts = found.get("allOf")
    if isinstance(parts, list):
        found = {key: value for key, value in found.items() if key != "allOf"}
        for part in parts:
            inner = follow(root, part)
            found = merged(found, inner.schema)
            refs += inner.refs
    return Followed(found, tuple(refs))


def _pointed(root: Mapping[str, Any], reference: Any) -> Mapping[str, Any]:
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ValueError(f"the reference {reference!r} points outside of the tool's schema")
    found: Any = root
    for step in filter(None, unquote(reference).removeprefix("#").split("/")):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise ValueError(f"the reference {reference!r} leads nowhere")
    return found


def merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Both schemas at once. What they say differently and can't be put together stays in ``allOf``."""
    both = {**right, **left}
    rest: dict[str, Any] = {}
    for word in left.keys() & right.keys():
        ours, theirs = left[word], right[word]
        if ours == theirs or word in ("title", "default", "$schema", "$id"):
            continue
        if word == "description":
            both[word] = f"{str(ours).rstrip(' .')}; {theirs}"
        elif word in ("properties", "$defs", "definitions") and isinstance(ours, Mapping):
            both[word] = {**theirs, **ours}
        elif word == "required" and isinstance(ours, list):
            both[word] = [*ours, *(name for name in theirs if name not in ours)]
        elif word == "allOf":
            both[word] = [*ours, *theirs]
        else:
            rest[word] = theirs
    if rest:
        both["allOf"] = [*both.get("allOf", ()), rest]
    return both


def branches(schema: Mapping[str, Any]) -> list[Any]:
    """The alternatives of a union; empty where ``anyOf`` or ``oneOf`` only adds conditions to a type given beside."""
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if not isinstance(parts, list) or not parts or "properties" in schema or "items" in schema:
            continue
        if all(not isinstance(part, Mapping) or not part or "$ref" in part or "allOf" in part or TYPED & part.keys()
               for part in parts):  # fmt: skip
            return parts
    return []


def places(schema: Mapping[str, Any]) -> list[Any]:
    """The members of a tuple; empty where it is none."""
    for word in ("prefixItems", "items"):
        if isinstance(schema.get(word), list) and schema[word]:
            return list(schema[word])
    return []


def rest_of(schema: Mapping[str, Any]) -> Any:
    """What an array holds after its places, or all through where it has none; None where that isn't said."""
    found = schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items")
    return found if isinstance(found, Mapping) else None


def values(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values of an ``enum`` or a ``const``; None where there is neither."""
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) and found else None


def kinds(schema: Mapping[str, Any]) -> list[str]:
    """The JSON types a schema names, or shows by what else it says; ``null`` among them where it is nullable."""
    named = schema.get("type")
    found = [str(kind) for kind in named] if isinstance(named, list) else [str(named)] if named else []
    if not found and ("properties" in schema or "additionalProperties" in schema):
        found = ["object"]
    if not found and ("items" in schema or "prefixItems" in schema):
        found = ["array"]
    if found and schema.get("nullable") is True and "null" not in found:
        found.append("null")
    return found

"""JSON Schema to Python type hints, as far as transformers reads them back.

What a hint can't hold (bounds, formats, the inside of an object) is told in words, which go into the description of
the parameter: the model reads both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import GenericAlias, MappingProxyType
from typing import Any, Literal

MAX_DEPTH = 6
"""How deep references are followed. A recursive schema goes on for ever; below this it's any value."""
WORDS_DEPTH = 3
"""How deep the inside of a value is told in words. Deeper would cost the model more than it helps."""
SCALARS: Mapping[str, Any] = MappingProxyType(
    {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
)
BOUNDS: Mapping[str, str] = MappingProxyType({
    "minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}", "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}", "minLength": "at least {} characters", "maxLength": "at most {} characters",
    "pattern": "matching {}", "format": "format {}", "minItems": "at least {} items", "maxItems": "at most {} items",
    "uniqueItems": "no item twice",
})  # fmt: skip


class Schemas:
    """Reads the schemas of one tool.

    Args:
        root: The tool's whole input schema; references point into it.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def follow(self, schema: Any) -> Mapping[str, Any]:
        """``schema`` itself, its ``$ref`` replaced by what it points to and its ``allOf`` merged.

        Raises:
            ValueError: A reference leads nowhere or outside of the schema.
        """
        if not isinstance(schema, Mapping):
            return {}  # true and false are schemas too; they say nothing about a type
        found: Mapping[str, Any] = schema
        seen = 0
        while "$ref" in found:
            beside = {key: value for key, value in found.items() if key != "$ref"}
            found = {**self._pointed(found["$ref"]), **beside}
            seen += 1
            if seen > MAX_DEPTH:
                raise ValueError(f"the reference {found.get('$ref')!r} goes in a circle")
        parts = found.get("allOf")
        if isinstance(parts, list):
            own = {key: value for key, value in found.items() if key != "allOf"}
            return reduce(_merged, [self.follow(part) for part in parts], own)
        return found

    def _pointed(self, reference: Any) -> Mapping[str, Any]:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError(f"the reference {reference!r} points outside of the tool's schema")
        found: Any = self._root
        for step in reference.removeprefix("#").strip("/").split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise ValueError(f"the reference {reference!r} leads nowhere")
        return found

    # -- hints

    def hint(self, schema: Any, depth: int = 0) -> Any:
        """The type hint of a schema; ``Any`` where Python has none that transformers reads."""
        schema = self.follow(schema)
        if depth > MAX_DEPTH:
            return Any
        if (values := _values(schema)) is not None:
            return _literal(values)
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list) and schema[word]:
                return _union([self.hint(part, depth + 1) for part in schema[word]])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union([self.hint({**schema, "type": kind}, depth + 1) for kind in kinds]) if kinds else Any
        if kinds in SCALARS:
            return SCALARS[kinds]
        if kinds == "array" or (kinds is None and ("items" in schema or "prefixItems" in schema)):
            return self._array(schema, depth)
        if kinds == "object" or (kinds is None and ("properties" in schema or "additionalProperties" in schema)):
            return self._object(schema, depth)
        return Any

    def _array(self, schema: Mapping[str, Any], depth: int) -> Any:
        places = schema.get("prefixItems")
        if isinstance(places, list) and len(places) > 1 and not schema.get("items"):
            return GenericAlias(tuple, tuple(self.hint(part, depth + 1) for part in places))
        if not isinstance(schema.get("items"), Mapping):
            return list
        inner = self.hint(schema["items"], depth + 1)
        return list if inner is Any else GenericAlias(list, (inner,))

    def _object(self, schema: Mapping[str, Any], depth: int) -> Any:
        rest = schema.get("additionalProperties")
        if schema.get("properties") or not isinstance(rest, Mapping):
            return dict
        inner = self.hint(rest, depth + 1)
        return dict if inner is Any else GenericAlias(dict, (str, inner))

    # -- words

    def words(self, schema: Any, depth: int = 0) -> str:
        """What the hint of a schema leaves out, in a few words; empty when it says it all."""
        schema = self.follow(schema)
        if depth > WORDS_DEPTH:
            return ""
        said = [text.format(_json(schema[word])) for word, text in BOUNDS.items() if _bounds(schema, word)]
        if (values := _values(schema)) is not None and _literal(values) is Any:
            said.append(f"one of {_json(values)}")
        for word in ("anyOf", "oneOf"):
            parts = [(self.kind(part), self._told(part, depth + 1)) for part in schema.get(word) or ()]
            if any(told for _, told in parts):
                said.append(" or ".join(f"{kind} ({told})" if told else kind for kind, told in parts))
        if schema.get("properties"):
            said.append(self._fields(schema, depth))
        for word, name in (("items", "each item"), ("additionalProperties", "each value")):
            if isinstance(schema.get(word), Mapping) and (told := self._told(schema[word], depth + 1)):
                said.append(f"{name}: {told}")
        return ", ".join(said)

    def _told(self, schema: Any, depth: int) -> str:
        """Description and words of an inner schema: nothing else shows its description to the model."""
        parts = (str(self.follow(schema).get("description") or ""), self.words(schema, depth))
        return "; ".join(part for part in parts if part)

    def _fields(self, schema: Mapping[str, Any], depth: int) -> str:
        needed = schema.get("required") or ()
        told = []
        for name, field in schema["properties"].items():
            text = self._told(field, depth + 1)
            kind = self.kind(field) + ("" if name in needed else ", optional")
            told.append(f"{name} ({kind})" + (f": {text}" if text else ""))
        return "fields: " + "; ".join(told)

    def kind(self, schema: Any, depth: int = 0) -> str:
        """The kind of value a schema takes, in JSON's own words."""
        schema = self.follow(schema)
        if depth > WORDS_DEPTH:
            return "any value"
        if (values := _values(schema)) is not None:
            return "one of " + _json(values)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return " or ".join(str(kind) for kind in kinds)
        if kinds == "array" and isinstance(schema.get("items"), Mapping):
            return f"array of {self.kind(schema['items'], depth + 1)}"
        for word in ("anyOf", "oneOf"):
            if kinds is None and schema.get(word):
                return " or ".join(dict.fromkeys(self.kind(part, depth + 1) for part in schema[word]))
        return str(kinds or ("object" if schema.get("properties") else "any value"))


def _merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    both = {**right, **left}
    for word in ("properties", "$defs"):
        if word in left and word in right:
            both[word] = {**right[word], **left[word]}
    if "required" in left and "required" in right:
        both["required"] = [*left["required"], *(name for name in right["required"] if name not in left["required"])]
    return both


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) and values else None


def _literal(values: list[Any]) -> Any:
    """A ``Literal`` of the values; ``Any`` where one of them is no JSON scalar."""
    if any(type(value) not in SCALARS.values() for value in values):
        return Any
    return Literal[tuple(values)]


def _union(hints: list[Any]) -> Any:
    """One hint for several: ``None`` among them makes it optional, ``Any`` among them swallows the rest."""
    real = [hint for hint in hints if hint is not type(None)]
    if not real:
        return type(None)
    joined = Any if any(hint is Any for hint in real) else reduce(or_, real)
    return joined if len(real) == len(hints) else joined | None


def _bounds(schema: Mapping[str, Any], word: str) -> bool:
    return word in schema and schema[word] not in (None, False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

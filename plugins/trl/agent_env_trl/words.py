"""What a type hint leaves out of a JSON Schema, told in words: they go into the description of the parameter.

Values that are made of others are told as types are in TypeScript, with what else is to be said in brackets behind::

    array of {lat: number (at least -90), name?: string (if it has one)}

A definition with a name is told where it first stands, with its name before it, and by its name from then on. So a
schema that contains itself comes to an end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from agent_env_trl.references import Followed, branches, follow, kinds, places, rest_of, values
from agent_env_trl.types import literal

BOUNDS: Mapping[str, str] = MappingProxyType({
    "minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}", "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}", "minLength": "at least {} characters", "maxLength": "at most {} characters",
    "pattern": "matching {}", "format": "format {}", "minItems": "at least {} items", "maxItems": "at most {} items",
    "minProperties": "at least {} fields", "maxProperties": "at most {} fields",
})  # fmt: skip
FLAGS: Mapping[str, str] = MappingProxyType({
    "uniqueItems": "no item twice", "deprecated": "deprecated", "readOnly": "read-only", "writeOnly": "write-only",
})  # fmt: skip
SHOWN = frozenset({
    "$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "$ref", "title", "description", "default", "type",
    "nullable", "enum", "const", "properties", "required", "items", "prefixItems", "additionalItems",
    "additionalProperties", "examples", *BOUNDS, *FLAGS,
})  # fmt: skip
"""Keywords that are told by hints or by words of their own, or tell nothing. Any other is told as it stands."""


class Words:
    """Tells the schemas of one parameter.

    Args:
        root: The tool's whole input schema; references point into it.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._told: set[str] = set()

    def of_parameter(self, name: str, schema: Any) -> str:
        """The description of a parameter, with all that its hint leaves out; empty where there is nothing to say.

        Raises:
            ValueError: A reference can't be followed.
        """
        followed = follow(self._root, schema)
        description = str(followed.schema.get("description") or "").strip().rstrip(" .")
        shape = self._shape(followed) if self._loses(followed, frozenset()) else ""
        return "; ".join(filter(None, [description, shape, *self._remarks(followed, name)]))

    def of_arguments(self, description: str) -> str:
        """What the root says of all arguments together; empty in most schemas."""
        schema = follow(self._root, self._root).schema
        own = str(schema.get("description") or "").strip()
        return "; ".join([own] * (own not in description) + list(_notes(schema)))

    # -- one schema

    def _line(self, schema: Any, name: str = "") -> str:
        """A schema inside of another: its shape, and what is to be said of it in brackets."""
        followed = follow(self._root, schema)
        if (known := self._known(followed)) is not None:
            own = schema.get("description") if isinstance(schema, Mapping) else None
            return f"{known} ({own})" if own else known
        description = str(followed.schema.get("description") or "").strip()
        said = "; ".join(filter(None, [description, *self._remarks(followed, name)]))
        shape = self._shape(followed)
        return f"{shape} ({said})" if said else shape

    def _known(self, followed: Followed) -> str | None:
        """The name of a definition that was told already."""
        found = next((ref for ref in followed.refs if ref in self._told), None)
        return None if found is None else Followed({}, (found,)).name or found

    def _shape(self, followed: Followed) -> str:
        schema = followed.schema
        if (options := values(schema)) is not None:
            return " | ".join([_json(value) for value in options] + ["null"] * (schema.get("nullable") is True))
        parts, named = branches(schema), kinds(schema)
        label = ""
        if parts or {"array", "object"} & set(named):  # only these contain others, and so maybe themselves
            self._told |= set(followed.refs)
            label = f"{followed.name} " if followed.name else ""
        if parts:
            told = [self._line(part) for part in parts]
            return label + " | ".join(dict.fromkeys(told + ["null"] * (schema.get("nullable") is True)))
        return label + (" | ".join(self._of_kind(schema, kind) for kind in named) or "any value")

    def _of_kind(self, schema: Mapping[str, Any], kind: str) -> str:
        if kind == "array":
            return self._array(schema)
        return self._object(schema) if kind == "object" else kind

    def _array(self, schema: Mapping[str, Any]) -> str:
        members, rest = places(schema), rest_of(schema)
        if members:
            told = [self._line(part) for part in members]
            return f"[{', '.join([*told, f'then each {self._line(rest)}'] if rest is not None else told)}]"
        if rest is None:
            return "array"
        inner = self._line(rest)
        return f"array of ({inner})" if " | " in inner else f"array of {inner}"

    def _object(self, schema: Mapping[str, Any]) -> str:
        fields = schema.get("properties")
        rest = schema.get("additionalProperties")
        if not isinstance(fields, Mapping) or not fields:
            return f"object with values {self._line(rest)}" if isinstance(rest, Mapping) and rest else "object"
        needed = schema.get("required") or ()
        told = [
            f"{_key(name)}{'' if name in needed else '?'}: {self._line(part, name)}" for name, part in fields.items()
        ]
        if isinstance(rest, Mapping) and rest:
            told.append(f"any other: {self._line(rest)}")
        elif rest is True:
            told.append("any other: any value")
        return "{" + ", ".join(told) + "}"

    def _remarks(self, followed: Followed, name: str) -> Iterator[str]:
        """What is said of a value beside its shape and its description: title, bounds, default."""
        schema = followed.schema
        description = str(schema.get("description") or "")
        title = str(schema.get("title") or "").strip()
        if _plain(title) not in {"", _plain(name), _plain(followed.name)} and title.lower() not in description.lower():
            yield title
        yield from _notes(schema)
        if schema.get("default") is not None:
            yield f"default {_json(schema['default'])}"

    # -- what a hint can't hold

    def _loses(self, followed: Followed, within: frozenset[str]) -> bool:
        """Whether the hint of a schema leaves out what is said inside of it."""
        schema, refs = followed.schema, set(followed.refs)
        if refs & within:
            return True
        if (options := values(schema)) is not None:
            return literal(options) is Any
        if schema.get("properties"):
            return True
        parts = branches(schema)
        if len([part for part in parts if not self._bare(part, "null")]) > 1 and not all(map(self._bare, parts)):
            return True  # transformers 5.2 keeps of a union's members their types alone
        members, rest = places(schema), rest_of(schema)
        if members and (rest is not None or len(members) == 1):
            return True
        more = schema.get("additionalProperties")
        inner = [*parts, *members, rest, more if isinstance(more, Mapping) else None]
        return any(self._says_more(part, within | refs) for part in inner if part is not None)

    def _bare(self, schema: Any, kind: str = "") -> bool:
        """Whether a schema names a type, or the one that is asked for, and says nothing of what is inside."""
        found = follow(self._root, schema).schema
        inside = values(found) or places(found) or rest_of(found) or isinstance(found.get("additionalProperties"), dict)
        return not inside and (not kind or kinds(found) == [kind])

    def _says_more(self, schema: Any, within: frozenset[str]) -> bool:
        followed = follow(self._root, schema)
        said = followed.schema.get("description") or next(self._remarks(followed, ""), None)
        return said is not None or self._loses(followed, within)


def _notes(schema: Mapping[str, Any]) -> Iterator[str]:
    """Bounds and conditions of a schema; what has no words here is told as it stands."""
    for word, text in BOUNDS.items():
        if schema.get(word) is not None:
            yield text.format(schema[word] if word in ("pattern", "format") else _json(schema[word]))
    for word, text in FLAGS.items():
        if schema.get(word) is True:
            yield text
    if isinstance(schema.get("examples"), list) and schema["examples"]:
        yield "e.g. " + ", ".join(_json(example) for example in schema["examples"])
    union = branches(schema)
    for word, value in schema.items():
        if word not in SHOWN and not word.startswith("x-") and not (union and value is union):
            yield f"{word} {_json(value)}"


def _plain(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w$-]+", name) else _json(name)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

"""JSON Schema to Python type hints, as far as transformers reads them back.

What a hint can't hold (bounds, formats, the inside of an object) is told in words: see :mod:`agent_env_trl.words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import GenericAlias, MappingProxyType
from typing import Any, Literal

from agent_env_trl.references import branches, follow, kinds, places, rest_of, values

SCALARS: Mapping[str, Any] = MappingProxyType(
    {"string": str, "integer": int, "number": float, "boolean": bool, "null": type(None)}
)

ANY_LIST = GenericAlias(list, (Any,))
"""An array of anything. Transformers 5.2 reads a bare ``list`` as an object."""


def hint(root: Mapping[str, Any], schema: Any, within: frozenset[str] = frozenset()) -> Any:
    """The type hint of a schema; ``Any`` where Python has none that transformers reads.

    Args:
        root: The tool's whole input schema; references point into it.
        schema: The part to read.
        within: The references it stands inside of: a schema that contains itself ends there.

    Raises:
        ValueError: A reference can't be followed.
    """
    followed = follow(root, schema)
    if within & set(followed.refs):
        return Any
    return _hint(root, followed.schema, within | set(followed.refs))


def _hint(root: Mapping[str, Any], schema: Mapping[str, Any], within: frozenset[str]) -> Any:
    if (options := values(schema)) is not None:
        found = literal(options)
        return found | None if schema.get("nullable") is True and found is not Any else found
    if parts := branches(schema):
        union = _union([hint(root, part, within) for part in parts])
        return _union([union, type(None)]) if schema.get("nullable") is True else union
    named = kinds(schema)
    return _union([_of_kind(root, schema, kind, within) for kind in named]) if named else Any


def _of_kind(root: Mapping[str, Any], schema: Mapping[str, Any], kind: str, within: frozenset[str]) -> Any:
    if kind == "array":
        return _array(root, schema, within)
    if kind == "object":
        return _object(root, schema, within)
    return SCALARS.get(kind, Any)


def _array(root: Mapping[str, Any], schema: Mapping[str, Any], within: frozenset[str]) -> Any:
    members, rest = places(schema), rest_of(schema)
    if members:  # transformers takes no tuple of one
        fits = len(members) > 1 and rest is None
        return GenericAlias(tuple, tuple(hint(root, part, within) for part in members)) if fits else ANY_LIST
    return ANY_LIST if rest is None else GenericAlias(list, (hint(root, rest, within),))


def _object(root: Mapping[str, Any], schema: Mapping[str, Any], within: frozenset[str]) -> Any:
    rest = schema.get("additionalProperties")
    if schema.get("properties") or not isinstance(rest, Mapping):
        return dict
    inner = hint(root, rest, within)
    return dict if inner is Any else GenericAlias(dict, (str, inner))


def literal(options: list[Any]) -> Any:
    """A ``Literal`` of the values; ``Any`` where one of them is no JSON scalar."""
    if any(type(value) not in SCALARS.values() for value in options):
        return Any
    return Literal[tuple(options)]


def _union(hints: list[Any]) -> Any:
    """One hint for several: ``None`` among them makes it optional, ``Any`` among them swallows the rest."""
    real = [one for one in hints if one is not type(None)]
    if not real:
        return type(None)
    joined = Any if any(one is Any for one in real) else reduce(or_, real)
    return joined if len(real) == len(hints) or joined is Any else joined | None

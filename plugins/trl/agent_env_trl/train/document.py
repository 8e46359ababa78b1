"""A YAML file, read the way people mean it.

YAML 1.1, which PyYAML speaks, takes ``no`` for a boolean and ``1e-5`` for a text; and of two equal keys PyYAML takes
the last, without a word. A training file has all of these, as in ``eval_strategy: no`` or ``learning_rate: 1e-5``. So
it's read by the rules of YAML 1.2's core schema (https://yaml.org/spec/1.2.2/#103-core-schema), and each key may stand
there once.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from agent_env_core.errors import Problem, SetupError

_SCALARS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", list("-+.")),
)


class _Loader(yaml.SafeLoader):
    """Plain data only, by the core schema."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping, whose keys are all different."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {}  # none of YAML 1.1's
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read(path: Path, assignments: Sequence[str] = ()) -> dict[str, Any]:
    """Reads a training file.

    Args:
        path: The file.
        assignments: ``key=value`` each, which win over the file; a key with dots names one inside a mapping, and a
            value is read as YAML.

    Raises:
        SetupError: The file can't be read, or an assignment has no ``=``.
    """
    try:
        document = _parsed(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise _error(path, f"can't be read: {exc.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise _error(path, f"isn't YAML: {_words(exc)}") from None
    if not isinstance(document, dict):
        raise _error(path, "must hold keys and values, such as `model: Qwen/Qwen3-4B`")
    for assignment in assignments:
        key, sign, value = assignment.partition("=")
        if not sign or not key:
            raise _error(path, f"--set {assignment!r} must be key=value", "e.g. --set arguments.max_steps=10")
        try:
            _assign(document, key.split("."), _parsed(value))
        except yaml.YAMLError as exc:
            raise _error(path, f"--set {assignment!r}: the value isn't YAML: {_words(exc)}") from None
    return document


def _parsed(text: str) -> Any:
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with other rules for scalars


def _assign(document: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        inner = document.get(key)
        document[key] = dict(inner) if isinstance(inner, Mapping) else {}
        document = document[key]
    document[keys[-1]] = value


def _words(exc: Exception) -> str:
    mark = getattr(exc, "problem_mark", None)
    where = f" in line {mark.line + 1}" if mark else ""
    return f"{getattr(exc, 'problem', None) or exc}{where}"


def _error(path: Path, message: str, fix: str = "") -> SetupError:
    return SetupError(str(path), [Problem(path.name, message, fix)])

"""What triggers say about a tool call: paths into it, conditions on it, and texts filled in from it. Pure.

A call is ``{"args": …, "result": …}``: what the tool was given, and its text read as JSON where it is some. A path is
``result.ships[0].name``; a name with neither root is one of the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

ROOTS = ("args", "result")
CONDITIONS = ("equals", "regex", "exists")
_SEGMENT = re.compile(r"(\w+)((?:\[(?:\d+|\*)\])*)", re.ASCII)
_FILLED = re.compile(r"\$\{((?:args|result)(?:\.[\w.\[\]*]+)?)(\?)?\}", re.ASCII)
_MEANT = re.compile(r"\$\{\s*(?:args|result)\b[^}]*\}?")
_ABSENT: Any = object()


def call_facts(arguments: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A call as paths see it."""
    try:
        result = json.loads(text) if text else None
    except (ValueError, RecursionError):
        result = text
    return {"args": dict(arguments), "result": result}


def path_fault(path: str) -> str:
    """Why a text is no path, or an empty text."""
    broken = next((part for part in path.split(".") if not _SEGMENT.fullmatch(part)), None)
    return "" if broken is None else f"{path!r} is no path: {broken!r} is neither a name nor a name with [index]"


def look_up(facts: Mapping[str, Any], path: str) -> Any:
    """What a path leads to; None where it leads nowhere."""
    root, _, rest = path.partition(".")
    if root not in ROOTS:
        return facts["args"].get(path) if path in facts["args"] else _follow(facts["args"], path)
    return _follow(facts[root], rest) if rest else facts[root]


def _follow(value: Any, path: str) -> Any:
    for part in path.split("."):
        found = _SEGMENT.fullmatch(part)
        if found is None or not isinstance(value, dict) or found[1] not in value:
            return None
        value = value[found[1]]
        for index in re.findall(r"\[(\d+)\]", found[2]):  # [*] is the list itself
            if not isinstance(value, list) or int(index) >= len(value):
                return None
            value = value[int(index)]
    return value


def condition_fault(condition: Any) -> str:
    """Why a value is no condition, or an empty text."""
    if not isinstance(condition, dict) or sum(key in condition for key in CONDITIONS) != 1:
        return f"must be an object with one of {', '.join(CONDITIONS)}, not {condition!r}"
    if "exists" in condition and not isinstance(condition["exists"], bool):
        return f"exists must be true or false, not {condition['exists']!r}"
    if "regex" in condition:
        try:
            re.compile(condition["regex"])
        except (re.error, TypeError) as exc:
            return f"regex {condition['regex']!r} can't be used: {exc}"
    return ""


def holds(condition: Mapping[str, Any], value: Any) -> bool:
    """Whether a value meets a condition that has no fault."""
    if "equals" in condition:
        wanted = condition["equals"]
        return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)  # 1 isn't true in JSON
    if "regex" in condition:
        text = value if isinstance(value, str) else json.dumps(value)
        return re.search(condition["regex"], text) is not None
    return bool(condition["exists"]) == (value not in (None, "", []))


def template_faults(value: Any) -> Iterator[str]:
    """Placeholders in a JSON value that could not be filled in: a tool would get them word for word."""
    for text in _texts(value):
        for meant in _MEANT.findall(text):
            filled = _FILLED.fullmatch(meant)
            if filled is None:
                yield f"{meant!r} is no placeholder; write ${{args.name}} or ${{result.name}}"
            elif (rest := filled[1].partition(".")[2]) and (fault := path_fault(rest)):
                yield fault


def fill(value: Any, facts: Mapping[str, Any]) -> Any:
    """A JSON value with its placeholders filled in from a call.

    A text that is one placeholder becomes what it leads to, of whatever type. Where that is nothing, ``${args.x?}``
    leaves its key or item out.

    Raises:
        LookupError: A placeholder without ``?`` leads to nothing.
    """
    filled = _fill(value, facts)
    return None if filled is _ABSENT else filled


def _fill(value: Any, facts: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: kept for key, item in value.items() if (kept := _fill(item, facts)) is not _ABSENT}
    if isinstance(value, list):
        return [kept for item in value if (kept := _fill(item, facts)) is not _ABSENT]
    if not isinstance(value, str):
        return value
    if whole := _FILLED.fullmatch(value):
        return _found(whole, facts)

    def text(match: re.Match[str]) -> str:
        found = _found(match, facts)
        if found is _ABSENT:
            return ""
        return found if isinstance(found, str) else json.dumps(found)

    return _FILLED.sub(text, value)


def _found(match: re.Match[str], facts: Mapping[str, Any]) -> Any:
    found = look_up(facts, match[1])
    if found is not None:
        return found
    if match[2]:
        return _ABSENT
    raise LookupError(f"{match[0]} leads to nothing in this call")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)

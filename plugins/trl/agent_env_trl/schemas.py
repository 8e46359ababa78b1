"""A tool's JSON Schema to a method that TRL can offer to a model.

TRL shows a method to the model as transformers' ``get_json_schema`` reads it: from type hints and a Google docstring.
So a method is made with both, and it passes on exactly the arguments the model wrote: what was left out stays out.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_env_core.errors import AgentEnvError
from agent_env_trl.references import follow
from agent_env_trl.types import hint
from agent_env_trl.words import Words

TAKEN = frozenset({"reset", "get_reward", "end_turn"})
"""Public names that TRL or the environment class uses itself."""
SECTIONS = (("Args:", "Arguments:"), ("Returns:", "Result:"), ("Raises:", "Errors:"))
"""Words at which transformers cuts a docstring, wherever they stand, and what we write in their place."""
CHOICES = re.compile(r"\(choices:", re.IGNORECASE)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a tool.

    Attributes:
        wire: Its name in the tool's schema.
        name: Its name in Python, which differs where ``wire`` is no usable identifier.
        hint: Its type.
        required: Whether a call must have it.
        default: What the schema says a call without it means, where that is a scalar.
        text: Its description on one line; never empty.
    """

    wire: str
    name: str
    hint: Any
    required: bool
    default: Any
    text: str


def check_names(tools: Iterable[Mapping[str, Any]]) -> None:
    """Refuses tools that can't be methods of an environment, all of them at once.

    Raises:
        AgentEnvError: The message names each tool and what to do.
    """
    problems = [f"{tool['name']!r} {why}" for tool in tools if (why := _why_no_method(str(tool["name"])))]
    if problems:
        raise AgentEnvError(
            f"TRL offers tools as Python methods, and these can't be: {'; '.join(problems)}. Rename them in the env's"
            " server, or hide them from the agent with a modify_env_tool_access step in the tasks"
        )


def _why_no_method(name: str) -> str:
    if name in TAKEN:
        return "is a name that the environment needs itself"
    if not name.isidentifier():
        return "isn't a Python identifier"
    if keyword.iskeyword(name):
        return "is a Python keyword"
    return "starts with an underscore, and TRL hides such methods" if name.startswith("_") else ""


def parameters(schema: Mapping[str, Any]) -> list[Parameter]:
    """The parameters of a tool, in the schema's order; those it only calls required come last.

    Raises:
        ValueError: The schema has a reference that can't be followed.
    """
    whole = follow(schema, schema).schema
    needed = list(whole.get("required") or ())
    parts = {**(whole.get("properties") or {})}
    parts |= {name: {} for name in needed if name not in parts}
    taken: set[str] = set()
    found = []
    for wire, part in parts.items():
        name = _python_name(wire, taken)
        taken.add(name)
        default = follow(schema, part).schema.get("default")
        text = Words(schema).of_parameter(wire, part)
        if name != wire:
            text = "; ".join(filter(None, [text, f"sent as {wire!r}"]))
        found.append(
            Parameter(
                wire, name, hint(schema, part), wire in needed,
                default if isinstance(default, str | int | float | bool) else None,
                _tame(" ".join(text.split()) or str(follow(schema, part).schema.get("title") or wire)),
            )
        )  # fmt: skip
    return found


def _python_name(wire: str, taken: set[str]) -> str:
    """``wire`` as an identifier that is free, and reads in a docstring as nothing but a name.

    It is ASCII, no keyword, none of the names that mean the object itself, and no heading of a section.
    """
    name = re.sub(r"\W", "_", wire, flags=re.ASCII) or "_"
    if name[0].isdigit():
        name = f"_{name}"
    if keyword.iskeyword(name) or name in ("self", "cls") or name.endswith(("Args", "Returns", "Raises")):
        name += "_"
    base, count = name, 2
    while name in taken:
        name, count = f"{base}_{count}", count + 1
    return name


def _tame(text: str) -> str:
    """Takes from a text what transformers would read as the structure of a docstring."""
    for word, instead in SECTIONS:
        text = text.replace(word, instead)
    return CHOICES.sub("(one of:", text)


def signature(found: Iterable[Parameter]) -> inspect.Signature:
    """``(self, *, …) -> str``."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    rest = [
        inspect.Parameter(
            parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=parameter.hint,
            default=inspect.Parameter.empty if parameter.required else parameter.default,
        )
        for parameter in found
    ]  # fmt: skip
    return inspect.Signature([own, *rest], return_annotation=str)


def docstring(name: str, description: str, found: Iterable[Parameter]) -> str:
    """A Google docstring that transformers reads back whole."""
    head = _tame(inspect.cleandoc(description)).strip() or f"Calls {name}."
    lines = [f"    {parameter.name}: {parameter.text}" for parameter in found]
    return "\n".join([head, "", "Args:", *lines]) if lines else head


def describe_method(
    method: Callable[..., Any], name: str, description: str, found: list[Parameter]
) -> Callable[..., Any]:
    """Gives ``method`` the name, signature, hints and docstring of a tool."""
    shape = signature(found)
    method.__name__ = name
    method.__doc__ = docstring(name, description, found)
    method.__annotations__ = {parameter.name: parameter.hint for parameter in found} | {"return": str}
    method.__signature__ = shape  # type: ignore[attr-defined]
    return method


def tool_method(tool: Mapping[str, Any]) -> Callable[..., str]:
    """The method for a tool: it hands its arguments to the environment's ``_call_tool``, under their wire names.

    Raises:
        AgentEnvError: The tool's schema can't be read.
    """
    name = str(tool["name"])
    schema = tool.get("input_schema") or {}
    description = str(tool.get("description") or "").strip()
    try:
        found = parameters(schema)
        if about := Words(schema).of_arguments(description):
            description = f"{description}\n\nOf the arguments: {about}".strip()
    except ValueError as exc:
        raise AgentEnvError(
            f"the input schema of the tool {name!r} can't be read: {exc}; mend the env's server"
        ) from None
    wires = {parameter.name: parameter.wire for parameter in found}

    def method(self: Any, /, **arguments: Any) -> str:
        text: str = self._call_tool(name, {wires.get(key, key): value for key, value in arguments.items()})
        return text

    return describe_method(method, name, description, found)

"""Builds the environment class of a toolset, and pickles it into the processes a trainer starts.

The class itself is the factory: TRL calls it without arguments, reads its tools off it, and tells rewards apart by it.
A class made at run time can't be found by its name, so its pickle holds what it was made from. Rebuilding gives the
same object wherever the process has it already.
"""

from __future__ import annotations

import copyreg
import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any, cast
from uuid import uuid4
from weakref import WeakSet

from agent_env_core.adapters import Combiner
from agent_env_core.client import Address, Toolset
from agent_env_trl.environment import Environment, Spec
from agent_env_trl.rollout_process import reporter, watch
from agent_env_trl.schemas import Parameter, check_names, describe_method, tool_method

END_TURN = "Ends your turn. Call it once you are done; what you reply to the task goes into the response."

_classes: dict[str, type[Environment]] = {}
_building = Lock()


class EnvironmentType(type):
    """The type of environment classes, by which pickle finds ``_reduce``."""


def environment_class(
    toolset: Toolset, *, name: str, hosts: Iterable[Address], tool_timeout: float, reset_timeout: float,
    combine: Combiner | None, together: bool = False, answer_limit: int | None = None,
) -> type[Environment]:  # fmt: skip
    """The class of a toolset's environments.

    Raises:
        AgentEnvError: A tool can't be a Python method; the message says what to do.
    """
    check_names(toolset.tools)
    return build(
        Spec(
            name=name,
            hosts=tuple((host.url, host.limit) for host in hosts),
            offered=toolset.offered,
            tools=json.dumps(list(toolset.tools)),
            tool_timeout=tool_timeout,
            reset_timeout=reset_timeout,
            answer_limit=answer_limit,
            combine=combine,
            together=together,
            plain=toolset.plain,
            ident=uuid4().hex,
        )
    )


def build(spec: Spec) -> type[Environment]:
    """The class of ``spec``: one object for each in a process."""
    with _building:
        if spec.ident not in _classes:
            _classes[spec.ident] = _made(spec, json.loads(spec.tools))
        return _classes[spec.ident]


def _made(spec: Spec, tools: Iterable[Mapping[str, Any]]) -> type[Environment]:
    where = ", ".join(url for url, _ in spec.hosts)
    namespace: dict[str, Any] = {str(tool["name"]): tool_method(tool) for tool in tools}
    namespace |= {
        "end_turn": _end_turn_method(),
        "__doc__": f"An environment that plays tasks of {spec.name}, served at {where}.",
        "__module__": Environment.__module__,
        "_spec": spec,
        "_instances": WeakSet(),
    }
    for member_name, member in namespace.items():
        if callable(member) and not member_name.startswith("_"):
            member.__qualname__ = f"{spec.name}.{member_name}"
            member.__module__ = Environment.__module__
    return cast(type[Environment], EnvironmentType(spec.name, (Environment,), namespace))


def _end_turn_method() -> Callable[..., str]:
    def end_turn(self: Any, /, *, response: str = "") -> str:
        text: str = self._end_turn(response)
        return text

    reply = Parameter("response", "response", str, False, "", "Your reply to the task; empty where it asks for none.")
    return describe_method(end_turn, "end_turn", END_TURN, [reply])


def _rebuilt(spec: Spec, training: str) -> type[Environment]:
    """The class of ``spec`` out of a pickle; elsewhere than where it was made, it reports to the watch ``training``."""
    if spec.ident not in _classes:
        build(spec)._reporter = reporter(training)
    return build(spec)


def _reduce(cls: type[Environment]) -> Any:
    spec = cls._spec
    if spec.combine is not None:
        try:
            pickle.dumps(spec.combine)
        except Exception as exc:
            raise pickle.PicklingError(
                f"the environment class {spec.name!r} can't be sent to another process, because its reward= can't be:"
                f" {exc}. Define the function at the top of a module, or name the score instead"
            ) from exc
    return _rebuilt, (spec, watch().address)


copyreg.pickle(EnvironmentType, _reduce)  # type: ignore[arg-type]  # it takes any callable for any type

"""Which tasks share one environment class, and what that class is called."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_env_core.errors import PluginError, describe
from agent_env_core.hookspecs import hookimpl
from agent_env_core.play.refusals import agent_of, prompted_agents
from agent_env_core.plugins import plugins
from agent_env_core.steps.placed import works_in_sandbox

if TYPE_CHECKING:
    from agent_env_core.bundle import Task

NO_TOOLS = "no-tools"
BASH = "bash"


@dataclass(frozen=True)
class ToolsetKey:
    """What decides which tools a task's played agent has, as far as that shows without a deploy.

    Attributes:
        envs: The ids of its envs, in order.
        role: Its role; empty is the default one.
        access: The changes of tool access that concern it: env id, action, tools.
        bash: Whether it works in a sandbox.
    """

    envs: tuple[str, ...]
    role: str = ""
    access: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    bash: bool = False


def default_key(task: Task) -> ToolsetKey:
    """The built-in rule."""
    played = prompted_agents(task.steps)
    envs: list[str] = []
    role = ""
    for step in task.steps:
        if step.get("type") == "deploy_agent" and agent_of(step) in played:
            envs += [env_id for env_id in step.get("env_ids") or () if env_id not in envs]
            role = str(step.get("role") or "").strip() or role
    access = tuple(
        (str(step["env_id"]), str(step["action"]), tuple(step["tools"]))
        for step in task.steps
        if step.get("type") == "modify_env_tool_access"
        and step["env_id"] in envs
        and step["role"] in (role or "default", "*")
    )
    return ToolsetKey(tuple(envs), role, access, any(works_in_sandbox(task.steps, agent) for agent in played))


@hookimpl(trylast=True)
def agent_env_toolset_key(task: Task) -> ToolsetKey:
    """Answers where no plugin did."""
    return default_key(task)


def toolset_key(task: Task) -> Hashable:
    """What a task's toolset is known by: tasks of equal keys share one environment class.

    Raises:
        PluginError: A plugin failed, or its key can't be one; the message names it.
    """
    for implementation in reversed(plugins().hook.agent_env_toolset_key.get_hookimpls()):
        try:
            key: Hashable = implementation.function(*((task,) if "task" in implementation.argnames else ()))
            hash(key)
        except Exception as exc:
            name = implementation.plugin_name
            raise PluginError(
                f"plugin {name} failed on the toolset key of task {task.name!r}: {describe(exc)}"
            ) from exc
        if key is not None:
            return key
    return default_key(task)


def toolset_names(tasks: Iterable[Task]) -> Mapping[Hashable, str]:
    """A name for people for the toolset of each key among ``tasks``: ``gridsim``, ``email+bash``.

    Names follow the envs' folders. Where two toolsets would share one, the role tells them apart, and then a number.
    """
    names: dict[Hashable, str] = {}
    for task in tasks:
        key = toolset_key(task)
        if key not in names:
            names[key] = _free(key, task, set(names.values()))
    return names


def _free(key: Hashable, task: Task, taken: set[str]) -> str:
    if isinstance(key, str) and key not in taken:
        return key
    known = key if isinstance(key, ToolsetKey) else default_key(task)
    parts = [task.bundle.envs[env_id].name for env_id in known.envs if env_id in task.bundle.envs]
    base = "+".join([*parts, BASH] if known.bash else parts) or NO_TOOLS
    for name in (base, f"{base}-{known.role}" if known.role else base):
        if name not in taken:
            return name
    number = 2
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"

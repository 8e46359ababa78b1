from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_env_core.bundle import Bundle, Task
from agent_env_core.errors import PluginError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.play.toolsets import ToolsetKey, default_key, toolset_key, toolset_names
from agent_env_core.plugins import plugins

Steps = list[dict[str, Any]]


def tasks_of(bundle: Bundle) -> dict[str, Task]:
    return {task.name: task for task in bundle.tasks}


def test_tasks_on_one_env_share_a_toolset(bundle: Bundle):
    tasks = tasks_of(bundle)
    same = {toolset_key(tasks[name]) for name in ("one-turn", "one-turn-far", "two-turns", "verifier-raise")}
    assert len(same) == 1


def test_role_and_access_tell_toolsets_apart(bundle: Bundle):
    tasks = tasks_of(bundle)
    env_id = tasks["role"].steps[0]["env_id"]
    assert default_key(tasks["role"]) == ToolsetKey((env_id,), "auditor")
    assert default_key(tasks["tool-access"]).access == ((env_id, "disable", ("peek",)), (env_id, "enable", ("hint",)))
    names = toolset_names(bundle.tasks)
    assert sorted(names.values()) == ["counter", "counter-2", "counter-auditor"]
    assert names[toolset_key(tasks["one-turn"])] == "counter"


def test_a_task_without_envs_has_a_name_too(make_bundle: Callable[..., Bundle], steps: Callable[..., Steps]):
    made = make_bundle({"talk": steps(env=None, load=None, grade=None, agent={"env_ids": []})})
    assert list(toolset_names(made.tasks).values()) == ["no-tools"]


def test_a_sandbox_tells_toolsets_apart(make_bundle: Callable[..., Bundle], steps: Callable[..., Steps]):
    look = {"id": "look", "type": "verify_sandbox", "criteria": [{"type": "probe_file_exists", "paths": ["a"]}]}
    talk = [{"id": "a", "type": "deploy_agent"}, {"id": "p", "type": "prompt_agent", "prompt": "Hi."}]
    made = make_bundle({"plain": steps(), "sandbox": steps(more=[look]), "talk": talk, "work": [*talk, look]})
    tasks = tasks_of(made)
    names = toolset_names(made.tasks)
    assert {name: names[toolset_key(task)] for name, task in tasks.items()} == {
        "plain": "counter",
        "sandbox": "counter+bash",
        "talk": "no-tools",
        "work": "bash",
    }


class Plugin:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @hookimpl
    def agent_env_toolset_key(self, task: Task) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def plug() -> Iterator[Callable[[Any], None]]:
    """Registers a plugin that answers so, for the test."""
    manager = plugins().manager
    registered: list[Plugin] = []

    def register(answer: Any) -> None:
        registered.append(Plugin(answer))
        manager.register(registered[-1], name="toolsets-of-mine")

    yield register
    for plugin in registered:
        manager.unregister(plugin)


def test_a_plugin_decides_and_may_leave_it_to_the_rule(bundle: Bundle, plug: Callable[[Any], None]):
    plug("mine")
    assert toolset_key(bundle.tasks[0]) == "mine"
    assert toolset_names(bundle.tasks) == {"mine": "mine"}


def test_none_leaves_it_to_the_rule(bundle: Bundle, plug: Callable[[Any], None]):
    plug(None)
    assert toolset_key(bundle.tasks[0]) == default_key(bundle.tasks[0])


@pytest.mark.parametrize("answer", [ValueError("no idea"), ["unhashable"]])
def test_a_plugin_that_fails_is_named(bundle: Bundle, plug: Callable[[Any], None], answer: Any):
    plug(answer)
    with pytest.raises(PluginError, match="plugin toolsets-of-mine failed on the toolset key of task 'one-turn'"):
        toolset_key(bundle.tasks[0])

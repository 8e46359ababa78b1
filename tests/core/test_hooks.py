"""Every hook is tested, documented, and does what its specification says."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest

from agent_env_core import hookimpl, hookspecs
from agent_env_core.plugins import EXTEND_GROUP, NAMED_GROUP, Entry, Plugins

ROOT = Path(__file__).resolve().parents[2]
MARKER = f"{hookspecs.PROJECT}_spec"
HOOKS = {name: function for name, function in vars(hookspecs).items() if hasattr(function, MARKER)}


class Point:
    """An entry point that loads an object at hand."""

    def __init__(self, plugin: object) -> None:
        self._plugin = plugin

    def load(self) -> object:
        return self._plugin


def plugins_of(plugin: object, name: str = "acme", group: str = NAMED_GROUP) -> Plugins:
    entry = Entry(name, group, "acme-plugin", "1.0", f"acme_{id(plugin)}", Point(plugin))  # type: ignore[arg-type]
    return Plugins(entries=[entry])


def implementing(hook: str, function: Any) -> object:
    """A plugin object with one hook."""
    module = ModuleType("acme")
    setattr(module, hook, hookimpl(function))
    return module


def test_there_are_hooks() -> None:
    assert len(HOOKS) == 7


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test(hook: str) -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert re.search(rf"def test_{hook}\b", tests), f"write a test named test_{hook}"


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_arguments(hook: str) -> None:
    page = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    arguments = ", ".join(inspect.signature(HOOKS[hook]).parameters)
    assert f"### `{hook}({arguments})`\n" in page


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_says_when_it_is_called_and_what_it_may_raise(hook: str) -> None:
    text = inspect.getdoc(HOOKS[hook]) or ""
    assert "Called:" in text
    assert "May raise:" in text
    assert "return" in inspect.get_annotations(HOOKS[hook])


def test_agent_env_sandbox_providers() -> None:
    made = []
    plugin = implementing(
        "agent_env_sandbox_providers", lambda register: register("acme", lambda config: made.append(config))
    )
    plugins_of(plugin).sandbox_provider("acme")({"region": "here"})
    assert made == [{"region": "here"}]


def test_agent_env_reward_combiners() -> None:
    def combiners(register: Any) -> None:
        register("acme", lambda text: lambda scores: scores[text])

    assert (
        plugins_of(implementing("agent_env_reward_combiners", combiners)).reward_combiner("acme:b")({"a": 0, "b": 1})
        == 1
    )


def test_agent_env_trainer_adapters() -> None:
    adapter = SimpleNamespace(name="acme")
    plugin = implementing("agent_env_trainer_adapters", lambda register: register("acme", lambda: adapter))
    assert plugins_of(plugin).trainer_adapter("acme") is adapter


def test_agent_env_task_steps() -> None:
    class Step:
        pass

    plugin = implementing("agent_env_task_steps", lambda register: register("acme", Step))
    assert plugins_of(plugin).step_type("acme") is Step


def test_agent_env_toolset_key() -> None:
    plugins = plugins_of(implementing("agent_env_toolset_key", lambda task: task["tools"]), group=EXTEND_GROUP)
    assert plugins.hook.agent_env_toolset_key(task={"tools": "chess"}) == "chess"
    undecided = plugins_of(implementing("agent_env_toolset_key", lambda task: None), group=EXTEND_GROUP)
    assert undecided.hook.agent_env_toolset_key(task={}) is None


def test_agent_env_episode_event() -> None:
    heard = []
    plugins = plugins_of(implementing("agent_env_episode_event", lambda event: heard.append(event)), group=EXTEND_GROUP)
    plugins.hook.agent_env_episode_event(event="started")
    assert heard == ["started"]


def test_agent_env_commands() -> None:
    group = click.Group("agent-env")
    plugin = implementing("agent_env_commands", lambda cli: cli.add_command(click.Command("acme")))
    plugins_of(plugin, group=EXTEND_GROUP).hook.agent_env_commands(cli=group)
    assert list(group.commands) == ["acme"]


def test_arguments_may_be_left_out() -> None:
    plugins = plugins_of(implementing("agent_env_toolset_key", lambda: "all alike"), group=EXTEND_GROUP)
    assert plugins.hook.agent_env_toolset_key(task={}) == "all alike"

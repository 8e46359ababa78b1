"""``agent-env plugins``: the list, its JSON, and the check."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from agent_env_core import hookimpl
from agent_env_core.cli import plugins as command_module
from agent_env_core.cli.main import main
from agent_env_core.plugins import NAMED_GROUP, Entry, Plugins


class Point:
    """An entry point that gives an object, or raises it."""

    def __init__(self, thing: object) -> None:
        self._thing = thing

    def load(self) -> object:
        if isinstance(self._thing, Exception):
            raise self._thing
        return self._thing


def working(name: str) -> ModuleType:
    module = ModuleType(name)
    module.agent_env_reward_combiners = hookimpl(lambda register: register(name, len))  # type: ignore[attr-defined]
    return module


def entry(name: str, thing: object, distribution: str = "acme") -> Entry:
    return Entry(name, NAMED_GROUP, distribution, "1.0", f"{distribution}.{name}", Point(thing))  # type: ignore[arg-type]


def run(monkeypatch: pytest.MonkeyPatch, entries: list[Entry], *arguments: str) -> Result:
    monkeypatch.setattr(command_module, "the_plugins", lambda: Plugins(entries=entries))
    return CliRunner().invoke(main, ["plugins", *arguments])


def test_the_table_shows_every_plugin_and_why_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry("good", working("good")), entry("bad", ImportError("no such\nthing"))]
    result = run(monkeypatch, entries)
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "good reward combiner acme 1.0 loaded" in lines
    assert "bad acme.bad acme 1.0 failed" in lines
    assert "bad: ImportError: no such thing" in lines


def test_the_json_has_a_version_and_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    report = json.loads(run(monkeypatch, [entry("bad", KeyError("k"))], "--json").stdout)
    assert report["format_version"] == 1
    (plugin,) = report["plugins"]
    assert plugin["status"] == "failed"
    assert plugin["detail"] == "KeyError: 'k'"
    assert plugin["trace"].startswith("Traceback (most recent call last)")


def test_check_passes_when_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [entry("good", working("good"))], "check")
    assert (result.exit_code, result.stdout) == (0, "1 plugins, none broken\n")


def test_check_names_each_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry("good", working("good")),
        entry("bad", RuntimeError("boom")),
        entry("twice", working("twice"), "acme-one"),
        entry("twice", working("twice"), "acme-two"),
    ]
    result = run(monkeypatch, entries, "check")
    assert result.exit_code == 1
    assert "bad (acme 1.0, acme.bad) failed: RuntimeError: boom\n" in result.stdout
    assert result.stdout.count("conflict: 'twice' is claimed by acme-one, acme-two") == 2
    assert "good" not in result.stdout


def test_a_plugin_that_may_not_load_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_PLUGINS", "")
    result = run(monkeypatch, [entry("bad", RuntimeError("boom"))], "check")
    assert result.exit_code == 0

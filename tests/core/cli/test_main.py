"""The group: its commands, plugins' commands, and how an error looks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from agent_env_core import hookimpl, integrity
from agent_env_core.cli import main as main_module
from agent_env_core.errors import PluginError
from agent_env_core.plugins import EXTEND_GROUP, Entry, Plugins

HEAVY = ("torch", "trl", "transformers", "datasets", "docker", "modal", "e2b", "openenv", "mcp", "fastapi", "uvicorn")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The group as it was: commands that a test's plugins add go away again."""
    main = main_module.main
    commands = dict(main.commands)
    yield
    main.commands.clear()
    main.commands.update(commands)
    main._extended = False


def use_plugin(monkeypatch: pytest.MonkeyPatch, hook: object) -> Plugins:
    """Makes an object with an implementation of ``agent_env_commands`` the only plugin there is."""
    module = ModuleType("acme")
    module.agent_env_commands = hookimpl(hook)  # type: ignore[attr-defined]
    point = type("Point", (), {"load": lambda self: module})()
    plugins = Plugins(entries=[Entry("acme", EXTEND_GROUP, "acme-dist", "1.0", "acme", point)])
    monkeypatch.setattr(main_module, "plugins", lambda: plugins)
    return plugins


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main_module.main, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_help_lists_the_commands() -> None:
    code, out, _ = run("--help")
    assert code == 0
    listed = [line.split()[0] for line in out.partition("Commands:\n")[2].splitlines()]
    assert [name for name in listed if name != "train"] == [  # that one is a plugin's
        "doctor",
        "gc",
        "plugins",
        "ps",
        "run",
        "sandbox",
        "serve",
        "validate",
    ]


def test_version_is_the_distributions() -> None:
    assert run("--version")[:2] == (0, "agent-env, version 1!0.1.0\n")


@pytest.mark.parametrize(
    "code",
    ["import agent_env_core", "from agent_env_core.cli.main import main; main(['--help'], standalone_mode=False)"],
)
def test_starting_imports_nothing_heavy(code: str) -> None:
    script = f"import sys, time; began = time.perf_counter(); {code}\nprint(time.perf_counter() - began, *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seconds, *modules = done.stdout.splitlines()[-1].split()
    print(f"{code[:40]}: {float(seconds):.3f} s")
    assert not {module.partition(".")[0] for module in modules} & set(HEAVY)


def test_an_error_of_ours_is_a_message_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PluginError("mixed up: do this")

    monkeypatch.setattr(integrity, "check", refuse)
    assert run("plugins") == (1, "", "Error: mixed up: do this\n")
    assert isinstance(CliRunner().invoke(main_module.main, ["--debug", "plugins"]).exception, PluginError)


def test_a_full_disk_is_a_message_and_no_traceback() -> None:
    command = [sys.executable, "-m", "agent_env_core.cli", "plugins", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    told = "Error: the output can't be written: No space left on device; free some space there\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_the_doctor_works_in_a_mixed_up_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PluginError("mixed up: do this")

    monkeypatch.setattr(integrity, "check", refuse)
    assert run("doctor", "--help")[0] == 0


def test_a_plugin_adds_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(cli: click.Group) -> None:
        @cli.command()
        def greet() -> None:
            """Say hello."""
            click.echo("hello")

    use_plugin(monkeypatch, add)
    assert run("greet") == (0, "hello\n", "")
    assert "Say hello." in run("--help")[1]


def test_plugins_are_left_alone_when_a_command_of_ours_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = use_plugin(monkeypatch, lambda cli: None)
    assert run("validate", "--help")[0] == 0
    assert plugins.entries[0].status == "unloaded"


def test_a_plugin_cannot_replace_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = main_module.main.commands["doctor"]
    plugins = use_plugin(monkeypatch, lambda cli: cli.add_command(click.Command("doctor")))
    _, _, err = run("--help")
    assert "the command 'doctor' exists already" in err
    assert main_module.main.commands["doctor"] is ours
    assert plugins.entries[0].status == "failed"


def test_a_plugin_that_fails_leaves_the_command_line_working(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cli: click.Group) -> None:
        raise RuntimeError("boom")

    plugins = use_plugin(monkeypatch, broken)
    code, out, err = run("--help")
    assert code == 0
    assert "doctor" in out
    assert "boom" in err
    assert plugins.entries[0].detail == "RuntimeError: boom"


def test_an_unknown_command_is_a_usage_error() -> None:
    code, _, err = run("trian")
    assert code == 2
    assert "No such command 'trian'" in err

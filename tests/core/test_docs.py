"""The documentation keeps up with the code."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from agent_env_core.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
OURS = ("agent_env", "agent_env_core")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples_parse_and_their_imports_of_ours_are_there(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
                assert find_spec(node.module) is not None, node.module
                module = __import__(node.module, fromlist=[alias.name for alias in node.names])
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_is_documented_with_its_options(name: str) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    command = main.commands[name]
    assert f"## `agent-env {name}" in page
    section = page.partition(f"## `agent-env {name}")[2].partition("\n## ")[0]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert f"`{parameter.opts[0]}" in section, parameter.opts[0]
    for subcommand in getattr(command, "commands", {}):
        assert f"`agent-env {name} {subcommand}`" in section


def test_every_environment_variable_is_documented() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    # Plugins document theirs in their READMEs; the kit sets some of its own for its checks.
    sources = [path for path in (ROOT / "agent_env_core").rglob("*.py") if "testing" not in path.parts]
    used = {name for path in sources for name in re.findall(r'"(AGENT_ENV_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    assert used
    assert {name for name in used if f"`{name}`" not in page} == set()


def test_the_architectures_layers_are_the_ones_that_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checked = [re.findall(r"\w+", layer) for layer in project["tool"]["importlinter"]["contracts"][0]["layers"]]
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The layers")[2]
    rows = re.findall(r"^\| (`[^|]*`) \|", section.partition("\n## ")[0], re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert told == [name for layer in checked for name in layer]


def test_the_architecture_names_every_folder() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The folders")[2]
    named = set(re.findall(r"`([\w.]+)/`", section.partition("\n## ")[0]))
    made = {"build", "dist", "out", "site", "sft", "agent-env-results"}  # see .gitignore
    here = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - made
    assert here <= named


PLUGINS_OF_OTHERS = [block for page in PAGES for block in blocks(page, "toml") if "agentenv-framework" in block]
PLUGINS_OF_OTHERS.append((ROOT / "tests/sample_plugin/pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", PLUGINS_OF_OTHERS, ids=lambda text: tomllib.loads(text)["project"]["name"])
def test_a_plugin_written_after_our_pages_asks_for_our_distributions(text: str) -> None:
    """The index has others of these names, and only ours have the epoch."""
    needs = [need for need in tomllib.loads(text)["project"]["dependencies"] if need.startswith("agentenv-framework")]
    assert needs
    assert [need for need in needs if ">=1!" not in need] == []


def test_modules_stay_small() -> None:
    folders = ("agent_env_core", "plugins", "bench", "chaos", "examples")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    long = {str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > 400}
    assert long == {}


def test_nobody_picks_a_free_port_to_bind_it_later() -> None:
    """A port that was bound and closed again may be somebody else's by the time it is used."""
    folders = ("agent_env_core", "plugins", "tests", "examples", "bench")
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.unparse(function)
                picks = re.search(r"\.bind\(\(.*, 0\)\)", text) and "getsockname" in text and ".listen(" not in text
                lets_go = re.search(r"\breturn\b|\.close\(\)", text)  # held while it is used, the number stays ours
                assert not (picks and lets_go), f"{path}: {function.name}"

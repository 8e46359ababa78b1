"""``docs/evaluating.md`` shows what there is: its example runs, and prints what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env_core.cli.main import main

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "evaluating.md").read_text(encoding="utf-8")
HELLO = Path(__file__).resolve().parents[3] / "agent_env_core" / "bundles" / "hello"

pytestmark = pytest.mark.usefixtures("no_processes_left")


def block(start: str) -> str:
    found = re.search(rf"^```{start}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def plain(text: str) -> list[str]:
    """Lines without times, in any order: which of two episodes ends first, nobody knows."""
    lines = [re.sub(r" +\d+\.\d s", " T", re.sub(r"\d/2$", "N/2", line.rstrip())) for line in text.splitlines()]
    return sorted(line for line in lines if line and "is stood for by" not in line)


def test_the_first_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    command, _, printed = block("console").partition("\n")
    result = CliRunner().invoke(main, command.removeprefix("$ agent-env ").split())
    assert plain(result.stderr + result.stdout) == plain(printed)


def test_the_script_is_the_bundles_own():
    shown = json.loads(block('json title="demo.json"'))
    assert shown.items() <= json.loads((HELLO / "demo.json").read_text()).items()


def test_the_python_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    exec(block("python"), {})
    said = capsys.readouterr().out
    assert said.count("open-the-door passed {'grade': 1.0}") == 2
    assert said.endswith("0.875 (0.5, 2)\n")

"""A training file is read as people mean it, and what it can't say is told all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agent_env_trl.train.document import read
from agent_env_trl.train.settings import Settings

from agent_env_core import SetupError


def written(folder: Path, text: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("true", True), ("False", False), ("~", None), ("", None),
        ("1e-5", 1e-5), ("2.5E+3", 2500.0), (".5", 0.5), ("3.", 3.0), (".inf", float("inf")), ("'1e-5'", "1e-5"),
        ("12", 12), ("-7", -7), ("0", 0), ("010", 10.0), ("1:30", "1:30"), ("2026-01-01", "2026-01-01"),
        ("null", None), ("[1, 1e2]", [1, 100.0]),
    ],
)  # fmt: skip
def test_scalars(tmp_path: Path, text: str, value: Any) -> None:
    found = read(written(tmp_path, f"key: {text}\n"))["key"]
    assert (found, type(found)) == (value, type(value))


def test_assignments_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "model: a\narguments:\n  max_steps: 1\n")
    assert read(path, ["arguments.max_steps=2", "arguments.learning_rate=1e-4", "peft.r=8", "model=b=c"]) == {
        "model": "b=c",
        "arguments": {"max_steps": 2, "learning_rate": 1e-4},
        "peft": {"r": 8},
    }


@pytest.mark.parametrize(
    ("text", "assignments", "message"),
    [
        ("a:\n  - [1", [], r"train.yaml: isn't YAML: .* in line 2"),
        ("a: 1\na: 2\n", [], "the key 'a' stands twice in line 2"),
        ("a: !!python/name:os.system\n", [], "isn't YAML: could not determine a constructor"),
        ("- a\n", [], "must hold keys and values"),
        ("a: 1\n", ["b"], r"--set 'b' must be key=value \(e.g. --set arguments.max_steps=10\)"),
        ("a: 1\n", ["b=[1"], r"--set 'b=\[1': the value isn't YAML"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, text: str, assignments: list[str], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        read(written(tmp_path, text), assignments)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"none.yaml: can't be read: No such file"):
        read(tmp_path / "none.yaml")


def test_every_problem_of_a_file_at_once() -> None:
    document = {"bundel": "b", "max_concurrent_envs": 0, "warm": "2", "arguments": [1], "reset_timeout": -1}
    with pytest.raises(SetupError) as caught:
        Settings.of(document, Path("train.yaml"))
    assert [problem.place for problem in caught.value.problems] == [
        "arguments", "bundel", "max_concurrent_envs", "model", "reset_timeout", "warm",
    ]  # fmt: skip
    assert "bundel: a training file has no such field (did you mean bundle?)" in str(caught.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "give either bundle"),
        ({"bundle": "b", "url": "http://h"}, "give either bundle"),
        ({"url": "http://h", "sandbox": "docker"}, "sandbox: is the server's own to set"),
        ({"url": ["http://h", "http://i"], "warm": 1}, "warm: is the server's own to set"),
        ({"url": 5}, r"url: 5 can't be: input should be a valid string, or input should be a valid list"),
        ({"url": ["http://h", 5]}, r"url: \['http://h', 5\] can't be: input should be a valid string"),
    ],
)
def test_contradictions(document: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        Settings.of({"model": "m", **document}, Path("train.yaml"))


def test_an_address_or_several() -> None:
    urls = ["http://one:8000", "http://other:8000"]
    assert Settings.of({"model": "m", "url": urls}, Path("train.yaml")).url == urls
    assert Settings.of({"model": "m", "url": urls[0]}, Path("train.yaml")).url == urls[0]

"""``agent-env run``: what it says, what it leaves on disk, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent_env_core.cli.main import main
from agent_env_core.cli.progress import doing, duration, fit, line_of, wrapped
from agent_env_core.cli.report import report
from agent_env_core.evaluate.record import Row
from agent_env_core.evaluate.summary import Episode, summarize
from agent_env_core.models import Usage

PROGRAM = [sys.executable, "-m", "agent_env_core.cli", "run"]


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["run", *map(str, arguments)])


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A bundle of prompts alone, so that no sandbox is made; its demo passes one of two tasks."""
    root = tmp_path / "talk"
    (root / "tasks").mkdir(parents=True)
    for name in ("a", "b"):
        looked = {"type": "response_contains", "needles": ["yes"]}
        steps = [
            {"id": "agent", "type": "deploy_agent"},
            {"id": "ask", "type": "prompt_agent", "prompt_id": "ask", "prompt": f"{name}, <who>?"},
            {"id": "grade", "type": "agent_prompt_response_verifier", "verifier_id": "g", "prompt_id": "ask",
             "criteria": [looked]},
        ]  # fmt: skip
        (root / "tasks" / f"{name}.json").write_text(json.dumps(steps))
    (root / "demo.json").write_text(json.dumps({"a": [{"say": "yes"}], "b": [{"say": "no"}]}))
    return root


@pytest.mark.usefixtures("no_processes_left")
def test_hello_shows_everything_without_docker_and_without_a_model(tmp_path: Path):
    result = run("hello", "--out", tmp_path / "out", "--sandbox", "process")
    assert result.exit_code == 0, result.output
    assert "scripted: the answers in the bundle's demo.json" in result.stderr
    assert "open-the-door" in result.stderr
    assert "score     0.875" in result.stdout
    rows = [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    assert {row["task"]: row["scores"]["grade"] for row in rows} == {"open-the-door": 1.0, "think-first": 0.75}
    calls = {row["task"]: [call["name"] for turn in row["turns"] for call in turn["calls"]] for row in rows}
    assert calls["open-the-door"] == ["read_note", "enter_code"]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["outcomes"]["passed"] == 1


def test_a_model_plays_and_the_summary_is_json(talk: Path, scripted_model: Any, tmp_path: Path):
    scripted_model.says("yes", "no")
    given = ["--model", "m", "--base-url", scripted_model.url, "--sandbox", "process", "--concurrency", 1]
    more = ["--temperature", 0.5, "--max-tokens", 99, "--seed", "who=Ada", "--reward", "grade", "--json"]
    result = run(talk, *given, *more, "--out", tmp_path / "out", "--fail-under", 0.5)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["bundle"], told["results"], told["score"]["mean"]) == ("talk", str(tmp_path / "out"), 0.5)
    first = scripted_model.requests[0]
    assert (first["temperature"], first["max_tokens"], first["messages"][-1]["content"]) == (0.5, 99, "a, Ada?")
    settings = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (settings["model"], settings["seed"]) == ("m", {"who": "Ada"})


def test_a_low_score_fails_where_one_was_asked_for(talk: Path, tmp_path: Path):
    result = run(talk, "--sandbox", "process", "--out", tmp_path / "out", "--fail-under", 0.51)
    assert result.exit_code == 1
    assert "below --fail-under 0.51: 0.500" in result.stderr


def test_a_failed_episode_fails_the_run_and_can_be_played_again(talk: Path, scripted_model: Any, tmp_path: Path):
    given = ["--model", "m", "--base-url", scripted_model.url, "--sandbox", "process", "--out", tmp_path / "out"]
    scripted_model.says(lambda body: 400 if "b, " in body["messages"][-1]["content"] else "yes")
    result = run(talk, *given)
    assert result.exit_code == 1
    assert "failed    1: turn:" in result.stdout
    assert "1 passed, 1 failed" in result.stdout
    assert "score     1.000 (1 episode;" in result.stdout
    again = run(talk, *given)
    assert again.exit_code == 1
    assert "--resume" in again.stderr
    scripted_model.says("yes")
    scripted_model.requests.clear()
    resumed = run(talk, *given, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert len(scripted_model.requests) == 1
    other = run(talk, *given, "--resume", "--temperature", 1)
    assert other.exit_code == 1
    assert "another evaluation" in other.stderr


def test_a_dry_run_checks_and_writes_nothing(talk: Path, scripted_model: Any, tmp_path: Path):
    given = ["--base-url", scripted_model.url, "--sandbox", "process", "--out", tmp_path / "out", "--dry-run"]
    (talk / "tasks" / "c.json").write_text('[{"id": "x", "type": "verify_a2a_agent_card"}]')
    result = run(talk, "--model", "m", *given)
    assert result.exit_code == 1
    assert (
        result.stdout
        == "everything is ready: 2 episodes would be played\n  a\n  b\n1 of 3 tasks can't be played here\n"
    )
    assert "can't be played (c)" in result.stderr
    assert run(talk, "--task", "a", "--model", "m", *given).exit_code == 0
    missing = run(talk, "--model", "other", *given)
    assert missing.exit_code == 1
    assert "isn't served there; the server has: m" in missing.stderr
    assert not (tmp_path / "out").exists()
    assert scripted_model.requests == []


def test_a_start_that_fails_leaves_no_results(talk: Path, scripted_model: Any, tmp_path: Path):
    given = ["--base-url", scripted_model.url, "--sandbox", "process", "--out", tmp_path / "out"]
    assert run(talk, "--model", "other", *given).exit_code == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume"], "--resume needs --out"),
        (["--seed", "nothing"], "must be KEY=VALUE"),
        (["--reward", "nothing"], "--reward"),
        (["--keep", "--repeat", "99"], "at most 16 episodes"),
        (["--repeat", "0"], "--repeat"),
    ],
)
def test_options_that_make_no_sense(talk: Path, options: list[str], message: str):
    result = run(talk, *options)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_no_model_is_told_with_what_to_do(talk: Path):
    (talk / "demo.json").unlink()
    result = run(talk)
    assert result.exit_code == 1
    assert "name one with --model" in result.stderr


def test_no_api_is_told_with_what_to_do(talk: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    result = run(talk, "--model", "m")
    assert result.exit_code == 1
    assert "the model 'm' can't be asked: no API is named; set OPENAI_BASE_URL (--base-url of `agent-env run`)" in (
        result.stderr
    )


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_tears_everything_down(
    talk: Path, scripted_model: Any, tmp_path: Path, number: signal.Signals, status: int
):
    asked, release = threading.Event(), threading.Event()
    scripted_model.says(lambda body: (asked.set(), release.wait(60)) and "yes")
    given = ["--model", "m", "--base-url", scripted_model.url, "--sandbox", "process", "--out", str(tmp_path / "out")]
    with subprocess.Popen([*PROGRAM, str(talk), *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert asked.wait(100)
        program.send_signal(number)
        said, errors = program.communicate(timeout=60)
    release.set()
    assert program.returncode == status, errors.decode()
    assert b"2 cancelled" in said
    rows = [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    assert {row["outcome"] for row in rows} == {"cancelled"}


@pytest.mark.usefixtures("no_processes_left")
def test_kept_sandboxes_stand_until_they_are_let_go(tmp_path: Path):
    given = ["--task", "open-the-door", "--sandbox", "process", "--keep", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*PROGRAM, "hello", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stderr is not None
        kept = next(line for line in program.stderr if line.startswith("kept"))
        url = kept.split()[4]
        ask = f"import httpx; print(httpx.get('{url.removesuffix('/mcp')}/.well-known/agent-env.json').json()['name'])"
        card = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)  # of anybody
        assert card.stdout == "door\n"
        program.send_signal(signal.SIGINT)
        said, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    assert "1 passed" in said


# -- how it looks


def a_row(**fields: Any) -> Row:
    return Row(
        "id", fields.pop("task", "monday"), "", fields.pop("repeat", 0), fields.pop("outcome", "passed"), **fields
    )


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_lines_fit_the_terminal(columns: int):
    reason = {"phase": "deploy", "reason": "the sandbox has no room " * 20, "retryable": True}
    rows = [
        a_row(reward=0.5, seconds=12.34, tool_calls=3),
        a_row(task="a-task-with-a-very-long-name-" * 5, repeat=11, outcome="failed", error=reason, seconds=4000.0),
    ]
    for row in rows:
        assert max(map(len, line_of(row, "1,999/2,200", columns).splitlines())) <= columns + 9  # colours take nine


def test_a_report_fits_the_terminal():
    reason = "the sandbox has no room " * 20
    failed = Episode("b" * 90, "failed", None, {}, "deploy", reason, True, Usage(10, 5), 1, 1, 1.0)
    episodes = {
        ("a", 0): Episode("a", "below_one", 0.5, {"x": 1.0, "y": 0.0}, "", "", False, Usage(10, 5), 1, 1, 1.0),
        ("b", 0): failed,
    }
    text = report(summarize(episodes, planned=4, repeat=2, seconds=99.0), 80)
    assert max(map(len, text.splitlines())) <= 80 + 8
    for said in ("2 not played", "another try may help: --resume", "x: 1.000", "20 read, 10 written", "1 m 39 s"):
        assert said in " ".join(text.split()), said


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (185, "3 m 05 s"), (7800, "2 h 10 m")]
)
def test_durations(seconds: float, text: str):
    assert duration(seconds) == text


def test_what_an_episode_is_busy_with():
    def running(*turns: Any) -> Any:
        return SimpleNamespace(player=SimpleNamespace(turns=list(turns)))

    first = SimpleNamespace(reply=None, number=1, of=2, calls=[1])
    last = SimpleNamespace(reply="x", number=2, of=2, calls=[])
    assert [doing(running(*turns)) for turns in ((), (first,), (first, last))] == [
        "deploying", "turn 1/2, 1 call", "scoring"
    ]  # fmt: skip
    assert fit("abcdef", 4) == "abc…"


def test_lines_of_a_reason_stay_lines():
    last_words = 'the env ended:\nTraceback:\n  File "/app/server.py", line 3\nRuntimeError: ' + "no licence " * 3
    assert wrapped(last_words, 40, 4).splitlines() == [
        "the env ended:",
        "    Traceback:",
        '    File "/app/server.py", line 3',
        "    RuntimeError: no licence no licence",
        "    no licence",
    ]

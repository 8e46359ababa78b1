"""``agent-env serve``: what it hands to the server, and one server from start to stop."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from agent_env_core.cli.main import main
from agent_env_core.server import main as server_main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, status: int = 0) -> tuple[Result, list[Any]]:
    served: list[Any] = []
    monkeypatch.setattr(server_main, "serve", lambda settings: served.append(settings) or status)
    return CliRunner().invoke(main, ["serve", *arguments]), served


def test_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAX_CONCURRENT_ENVS", raising=False)
    result, (settings,) = run(monkeypatch, "bundles/x")
    assert result.exit_code == 0
    assert settings == server_main.Settings(bundle=Path("bundles/x"), sandbox="docker")
    assert (settings.host, settings.port, settings.max_concurrent_envs) == ("127.0.0.1", 8000, 8)


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "5")
    options = [
        "--sandbox",
        "process",
        "--host",
        "0.0.0.0",
        "--port",
        "0",
        "--max-concurrent-envs",
        "48",
        "--reward",
        "mean",
        "--warm",
        "6",
    ]
    _, (settings,) = run(monkeypatch, "x", *options)
    assert settings == server_main.Settings(
        Path("x"), reward="mean", sandbox="process", max_concurrent_envs=48, warm=6, host="0.0.0.0", port=0
    )


def test_the_environment_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "5")
    assert run(monkeypatch, "x")[1][0].max_concurrent_envs == 5


def test_a_limit_that_is_no_number_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_CONCURRENT_ENVS", "many")
    result, served = run(monkeypatch, "x")
    assert (result.exit_code, served) == (2, [])
    assert "MAX_CONCURRENT_ENVS=many must be a whole number" in result.output
    assert "Traceback" not in result.output


def test_the_servers_status_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "x", status=1)[0].exit_code == 1


@pytest.mark.parametrize("options", [["--port", "70000"], ["--max-concurrent-envs", "0"], ["--nonsense"]])
def test_options_that_make_no_sense_are_usage_errors(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    result, served = run(monkeypatch, "x", *options)
    assert (result.exit_code, served) == (2, [])


@pytest.mark.usefixtures("no_processes_left")
def test_a_bundle_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agent_env_core.cli",
        "serve",
        str(tmp_path / "nothing"),
        "--port",
        "0",
        "--sandbox",
        "process",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("no_processes_left")
def test_a_server_from_start_to_stop(counter_bundle: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "agent_env_core.cli",
        "serve",
        str(counter_bundle),
        "--port",
        "0",
        "--sandbox",
        "process",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = next(found[0] for line in server.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        assert httpx.get(f"{url}/health").status_code == 200
        server.send_signal(signal.SIGTERM)
        rest = server.stderr.read()
    assert server.returncode == 0, rest

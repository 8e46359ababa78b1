"""The build's own scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", **env}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_stages_are_noted_and_keep_their_exit_status(tmp_path: Path) -> None:
    notes = tmp_path / "out" / "stages.tsv"
    assert run(str(SCRIPTS / "stage.sh"), "good", "true", STAGES=str(notes)).returncode == 0
    assert run(str(SCRIPTS / "stage.sh"), "bad", "sh", "-c", "exit 7", STAGES=str(notes)).returncode == 7
    assert [line.split("\t")[::2] for line in notes.read_text().splitlines()] == [["good", "0"], ["bad", "7"]]


def test_the_table_shows_stages_folders_and_failures(tmp_path: Path) -> None:
    stages, junit = tmp_path / "stages.tsv", tmp_path / "junit.xml"
    stages.write_text("setup\t120\t0\ntests\t90\t1\n")
    junit.write_text(
        '<testsuites><testsuite><testcase file="tests/core/test_a.py" time="60"/>'
        '<testcase file="tests/core/test_b.py" time="12"><failure/></testcase>'
        '<testcase file="tests/plugins/docker/test_c.py" time="18"/></testsuite></testsuites>'
    )
    table = run(sys.executable, str(SCRIPTS / "minutes.py"), str(stages), str(junit)).stdout
    rows = [line.split() for line in table.splitlines() if line]
    assert rows == [
        ["stage", "minutes"],
        ["setup", "2.0"],
        ["tests", "1.5", "failed"],
        ["tests/core", "1.2", "2", "tests,", "1", "failed"],
        ["tests/plugins/docker", "0.3", "1", "tests"],
        ["all", "stages", "3.5"],
    ]


def test_the_table_of_a_build_that_failed_at_once(tmp_path: Path) -> None:
    done = run(sys.executable, str(SCRIPTS / "minutes.py"), str(tmp_path / "no"), str(tmp_path / "none"))
    assert done.returncode == 0
    assert "all stages" in done.stdout


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_setup_without_a_python_that_fits_says_what_to_do(tmp_path: Path, python: str) -> None:
    done = run("bash", str(SCRIPTS / "setup.sh"), str(tmp_path / "venv"), PYTHON=python)
    assert done.returncode == 1
    assert f"tried: {python}" in done.stderr
    assert "make setup PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()

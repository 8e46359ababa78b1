"""The build's own scripts."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
DOCKER = """#!/usr/bin/env bash
# An engine with the images of $IMAGES, and a registry if there is $REGISTRY.
case "$1 $2" in
  "image inspect") grep -qx "$3" "$IMAGES" ;;
  "pull --quiet") [ -n "${REGISTRY:-}" ] && echo "$3" >>"$IMAGES" ;;
  import*) cat >/dev/null; echo "${@: -1}" >>"$IMAGES" ;;
  tag*) grep -qx "$3" "$IMAGES" && echo "replaced $3" >>"$IMAGES" || echo "$3" >>"$IMAGES" ;;
esac
"""


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


@pytest.fixture
def engine(tmp_path: Path) -> dict[str, str]:
    """The environment of a script that finds such an engine, and a CPython 3.11 in the place of pyenv's."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOCKER)
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\necho a tar\n")
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    for minor in ("3.11", "3.12"):
        (tmp_path / "pyenv" / "versions" / f"{minor}.1").mkdir(parents=True)
    (tmp_path / "images").write_text("python:3.11\n")
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "IMAGES": str(tmp_path / "images"),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
    }


def test_base_images_come_from_the_registry_if_there_is_one(engine: dict[str, str]) -> None:
    assert run(str(ROOT / ".ci" / "mkbase.sh"), **engine, REGISTRY="yes").returncode == 0
    assert Path(engine["IMAGES"]).read_text().split() == ["python:3.11", "python:3.11-slim", "python:3.12-slim"]


def test_base_images_made_here_replace_none(engine: dict[str, str]) -> None:
    for _ in range(2):
        assert run(str(ROOT / ".ci" / "mkbase.sh"), **engine).returncode == 0
    made = Path(engine["IMAGES"]).read_text().splitlines()
    names = [
        f"python:{minor}{end}" for minor in ("3.11", "3.12") for end in ("", "-slim", "-bookworm", "-slim-bookworm")
    ]
    assert sorted(made) == sorted(names)


def test_the_weekly_job_trains_on_what_the_script_trains_on() -> None:
    script = (SCRIPTS / "trl_versions.sh").read_text("utf-8")
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text("utf-8"))["jobs"]
    steps = [shlex.split(line) for line in re.findall(r"^  step ([^\"\n]+)$", script, re.MULTILINE)]
    assert jobs["trl"]["strategy"]["matrix"]["requirements"] == [" ".join(step) for step in steps]

"""The connection to an engine by ssh, from an ``ssh`` that is made up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_env_docker.tunnel import Tunnel, TunnelError
from waiting import until


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch) -> Callable[[str], None]:
    """Puts a program in the place of ``ssh``."""

    def put(script: str) -> None:
        (tmp_path / "ssh").write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}")
        (tmp_path / "ssh").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return put


def test_what_ssh_says_does_not_hold_it_up(ssh, tmp_path):
    ssh("echo; echo agent-env is through\nhead -c 500000 /dev/zero | tr '\\0' '\\n' >&2\ntouch on\nexec cat\n")
    through = Tunnel("ssh://box")
    try:
        assert through.engine().startswith("unix:///tmp/agent-env-ssh-")
        until((tmp_path / "on").exists)
    finally:
        through.close()


def test_why_ssh_ended_is_told(ssh):
    ssh("echo 'Permission denied' >&2\necho 'by box' >&2\nexit 255\n")
    through = Tunnel("ssh://box")
    try:
        with pytest.raises(TunnelError, match="Permission denied; by box"):
            through.engine()
    finally:
        through.close()


@pytest.mark.parametrize(
    ("host", "target"),
    [
        ("ssh://GPU-Box", "-- GPU-Box"),
        ("ssh://me@GPU-Box:2222/run/user/1000/docker.sock", "-p 2222 -l me -- GPU-Box"),
        ("ssh://[::1]:22", "-p 22 -- ::1"),
    ],
)
def test_a_machine_is_named_as_the_user_names_it(ssh, tmp_path, host, target):
    ssh('echo "$@" >asked\necho; echo agent-env is through\nexec cat\n')
    through = Tunnel(host)
    try:
        through.engine()
        assert f" {target} " in (tmp_path / "asked").read_text()
    finally:
        through.close()

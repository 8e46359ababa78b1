"""The limit of open files follows the sessions, or refuses them with the fix."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from agent_env_core.errors import CapacityError
from agent_env_core.server.limits import allow_files


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The soft and the hard limit that this process seems to have; the last pair counts."""
    kept = [(256, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: kept[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: kept.append(pair))
    return kept


def test_enough_is_left_as_it_is(limits: list[tuple[int, int]]) -> None:
    allow_files(16, 0)
    assert limits == [(256, 1024)]


def test_it_is_raised_to_what_sessions_need_and_no_further(limits: list[tuple[int, int]]) -> None:
    allow_files(32, 0)
    assert limits[1:] == [(384, 1024)]
    allow_files(8, 0)
    assert limits[1:] == [(384, 1024)]
    allow_files(32, 8)
    assert limits[2:] == [(448, 1024)]


def test_deployments_that_nobody_asked_for_take_what_may_be_had(limits: list[tuple[int, int]]) -> None:
    allow_files(32)
    assert limits[1:] == [(640, 1024)]
    allow_files(100)
    assert limits[2:] == [(1024, 1024)]


def test_what_may_not_be_raised_is_refused_with_the_fix(limits: list[tuple[int, int]]) -> None:
    limits.append((256, 256))
    with pytest.raises(CapacityError, match=r"say `ulimit -n 384` before you start it, or allow 16 sessions at most"):
        allow_files(32)
    with pytest.raises(CapacityError, match=r"8 sessions and 9 deployments made ahead need up to 264 .*allow 7 sess"):
        allow_files(8, 9)
    limits.append((100, 100))
    with pytest.raises(CapacityError, match=r"this process may have 100: say `ulimit -n 192` before you start it$"):
        allow_files(8)


def test_for_this_process_itself() -> None:
    code = (
        "import resource as r; from agent_env_core.server.limits import allow_files;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 300)); allow_files(20, 0); print(r.getrlimit(r.RLIMIT_NOFILE))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "(288, 300)"

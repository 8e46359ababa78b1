from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from agent_env_core.envs import clock_server
from agent_env_core.envs.clock import VirtualClock, read_time, write_time

NINE = datetime(2026, 3, 1, 9, tzinfo=UTC)


@pytest.mark.parametrize(("rate", "after"), [(0, 0), (1, 10), (3600, 36_000)])
def test_it_runs_at_its_rate(rate: float, after: float):
    now = [100.0]
    clock = VirtualClock(NINE, rate, lambda: now[0])
    assert clock.now() == NINE
    now[0] += 10
    assert clock.now() == NINE + timedelta(seconds=after)
    now[0] = 0.0  # a machine's clock that was set back doesn't take it before its start
    assert clock.now() == NINE


def test_it_ends_where_time_can_no_longer_be_written():
    now = [0.0]
    clock = VirtualClock(NINE, 86_400, lambda: now[0])
    now[0] = 1e9
    assert clock.now().year == 9999


@pytest.mark.parametrize("text", ["2026-03-01T09:00:00Z", "2026-03-01T10:00:00+01:00", "2026-03-01T09:00:00.000Z"])
def test_times_are_read_in_utc(text: str):
    assert read_time(text) == NINE
    assert write_time(read_time(text)) == "2026-03-01T09:00:00Z"


@pytest.mark.parametrize(
    "text", ["", "now", "2026-03-01T09:00:00", "2026-13-01T09:00:00Z", "0001-01-01T00:00:00+14:00"]
)
def test_what_is_no_time(text: str):
    with pytest.raises(ValueError, match="is no time of RFC 3339"):
        read_time(text)


class Box:
    """A sandbox whose one file is what its clock noted."""

    def __init__(self) -> None:
        self.noted: Any = {}

    async def read(self, path: str) -> bytes:
        if isinstance(self.noted, Exception):
            raise self.noted
        return json.dumps(self.noted).encode()


class Server:
    """A server that follows a clock."""

    def __init__(self) -> None:
        self.sandbox = Box()


async def test_what_a_server_sets_is_taken_over():
    clock = VirtualClock(NINE, 0, lambda: 100.0)
    server = Server()
    clock._followers.append(server)  # type: ignore[arg-type]
    for broken in ({}, [], {"virtual_time": "x", "rate": 0, "set_at": 1}, FileNotFoundError("no")):
        server.sandbox.noted = broken
        assert await clock.current() == NINE
    server.sandbox.noted = {"virtual_time": "2026-03-02T09:00:00Z", "rate": 0, "set_at": 101.0}
    assert await clock.current() == NINE + timedelta(days=1)
    server.sandbox.noted = {
        "virtual_time": "2026-03-01T09:00:00Z",
        "rate": 0,
        "set_at": 99.0,
    }  # older than what is known
    assert await clock.current() == NINE + timedelta(days=1)


def test_the_process_in_a_sandbox(tmp_path: Path):
    source = Path(clock_server.__file__).read_bytes()
    argv = [sys.executable, "-", "2026-03-01T09:00:00Z", "0"]
    started = subprocess.run(argv, input=source, cwd=tmp_path, capture_output=True, check=True, timeout=60)
    base = started.stdout.decode().strip()
    try:
        with httpx.Client(base_url=base, trust_env=False, timeout=60) as client:
            told = client.get("/clock/time").json()
            assert (told["virtual_time"], told["virtual_seconds_per_real_second"]) == ("2026-03-01T09:00:00Z", 0)
            assert client.get("/clock/state").json()["armed"] is True
            put = client.put("/clock/set-time", json={"virtual_time": "2026-03-05T09:00:00Z"})
            assert (put.status_code, put.json()["t0"]) == (200, "2026-03-05T09:00:00Z")
            for wrong in ({}, [], {"virtual_time": "x"}, {"virtual_time": "2026-03-05T09:00:00"}):
                assert client.put("/clock/set-time", json=wrong).status_code == 400
            rate = {"virtual_time": "2026-03-05T09:00:00Z", "virtual_seconds_per_real_second": 1e9}
            assert client.put("/clock/set-time", json=rate).status_code == 400
            assert client.get("/clock/time").json()["virtual_time"] == "2026-03-05T09:00:00Z"
        noted = json.loads((tmp_path / "clock.json").read_text())
        assert (noted["virtual_time"], noted["rate"]) == ("2026-03-05T09:00:00Z", 0)
    finally:
        _end_those_in(tmp_path)


def _end_those_in(folder: Path) -> None:
    """Ends the process that stayed behind in a folder of this test: here no sandbox ends it."""
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                process.kill()
                process.wait(60)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue

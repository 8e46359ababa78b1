"""The server as a process: how it starts, what it tells, and every way it ends."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx
import psutil
import pytest
from waiting import until
from websockets.sync.client import connect

pytestmark = pytest.mark.usefixtures("no_processes_left")


class Child:
    """A server process, and what it tells."""

    def __init__(self, process: subprocess.Popen[str], told: IO[str], lifeline: int) -> None:
        self.process = process
        self.told = told
        self.lifeline = lifeline

    def until(self, event: str) -> dict[str, Any]:
        for line in self.told:
            message = json.loads(line)
            if message["event"] == event:
                return message
        raise AssertionError(f"it ended with status {self.process.wait()} and told no {event!r}")

    def drop_lifeline(self) -> None:
        os.close(self.lifeline)
        self.lifeline = -1

    @property
    def envs(self) -> list[psutil.Process]:
        """The env servers it runs."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "server.py" in process.cmdline():
                    found.append(process)
        return found


@contextmanager
def child(*arguments: str, lifeline_at: int = 0) -> Iterator[Child]:
    low, lifeline = os.pipe()
    lifeline_theirs = fcntl.fcntl(low, fcntl.F_DUPFD, lifeline_at)
    os.close(low)
    told, told_theirs = os.pipe()
    command = [sys.executable, "-m", "agent_env_core.server", *arguments]
    command += ["--parent-fd", str(lifeline_theirs), "--ready-fd", str(told_theirs)]
    process = subprocess.Popen(
        command, pass_fds=(lifeline_theirs, told_theirs), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    os.close(lifeline_theirs)
    os.close(told_theirs)
    with open(told, encoding="utf-8") as lines:
        server = Child(process, lines, lifeline)
        try:
            yield server
        finally:
            if server.lifeline >= 0:
                server.drop_lifeline()
            process.communicate(timeout=60)


def ends_by_signal(number: int) -> Callable[[Child], None]:
    return lambda server: server.process.send_signal(number)


WAYS = [
    pytest.param(ends_by_signal(signal.SIGTERM), id="SIGTERM"),
    pytest.param(ends_by_signal(signal.SIGINT), id="SIGINT"),
    pytest.param(Child.drop_lifeline, id="its parent's pipe closes"),
]


@pytest.mark.parametrize("end", WAYS)
def test_it_takes_its_episodes_down_however_it_ends(counter_bundle: Path, end: Any) -> None:
    with child(str(counter_bundle), "--sandbox", "process") as server:
        url = server.until("ready")["url"]
        if sys.platform == "linux":
            files = psutil.Process(server.process.pid).memory_maps()
            mapped = {Path(file.path).name.partition(".")[0] for file in files}
            assert "_pydantic_core" in mapped
            assert "_multiarray_umath" not in mapped, "OpenEnv's web interface is imported, with all of pandas"
        with connect(f"ws{url.removeprefix('http')}/ws", proxy=None) as socket:
            socket.send(json.dumps({"type": "reset", "data": {"split": "train", "index": 0}}))
            assert json.loads(socket.recv())["data"]["done"] is False
            assert server.envs
            end(server)
            assert server.process.wait(60) == 0


@pytest.mark.parametrize("end", WAYS[:2])
def test_it_can_be_ended_in_mid_deploy(changed_counter: Any, end: Any) -> None:
    with child(str(changed_counter(start="never")), "--sandbox", "process") as server:
        url = server.until("ready")["url"]
        with connect(f"ws{url.removeprefix('http')}/ws", proxy=None) as socket:
            socket.send(json.dumps({"type": "reset", "data": {"split": "train", "index": 0}}))
            until(lambda: server.envs)
            end(server)
            assert server.process.wait(60) == 0


def test_a_trainer_with_a_thousand_files_open_is_missed_too(counter_bundle: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    try:
        with child(str(counter_bundle), "--sandbox", "process", lifeline_at=1500) as server:
            server.until("ready")
            server.drop_lifeline()
            assert server.process.wait(60) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_it_can_be_ended_before_it_is_ready(counter_bundle: Path) -> None:
    with child(str(counter_bundle), "--sandbox", "process") as server:
        server.until("progress")
        server.drop_lifeline()
        assert server.process.wait(60) == 0


def test_why_it_cannot_start_is_told(tmp_path: Path, counter_bundle: Path) -> None:
    with child(str(tmp_path), "--sandbox", "process") as server:
        failed = server.until("failed")
        assert server.process.wait(60) == 1
    assert failed["kind"] == "BundleError"
    assert failed["problems"]
    with child(str(counter_bundle), "--sandbox", "submarine") as server:
        assert "no sandbox provider 'submarine'" in server.until("failed")["text"]


def test_a_host_that_is_not_here_is_told_with_the_fix(counter_bundle: Path) -> None:
    with child(str(counter_bundle), "--sandbox", "process", "--host", "192.0.2.1") as server:
        failed = server.until("failed")
    assert "can't listen on 192.0.2.1:" in failed["text"]
    assert "name an address of this machine" in failed["text"]


def test_a_port_in_use_is_told_with_the_fix(counter_bundle: Path) -> None:
    with child(str(counter_bundle), "--sandbox", "process") as first:
        port = first.until("ready")["url"].rpartition(":")[2]
        with child(str(counter_bundle), "--sandbox", "process", "--port", port) as second:
            failed = second.until("failed")
        assert f"can't listen on 127.0.0.1:{port}" in failed["text"]
        assert "0 for a free one" in failed["text"]


def test_two_servers_side_by_side(counter_bundle: Path) -> None:
    """With defaults, both come up, and each answers its own clients."""
    with child(str(counter_bundle), "--sandbox", "process", "--max-concurrent-envs", "3") as first:
        with child(str(counter_bundle), "--sandbox", "process", "--max-concurrent-envs", "4") as second:
            urls = [server.until("ready")["url"] for server in (first, second)]
            limits = [
                httpx.get(f"{url}/agent-env/v1/info", trust_env=False).json()["max_concurrent_envs"] for url in urls
            ]
            assert limits == [3, 4]
        assert httpx.get(f"{urls[0]}/health", trust_env=False).status_code == 200


@pytest.mark.parametrize("arguments", [[], ["a", "--split", "b=c"], ["--split", "b"]])
def test_arguments_that_say_nothing_to_serve(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "agent_env_core.server", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "give either a bundle's folder" in ended.stderr


def test_a_script_that_serves_shows_what_takes_long(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "uvicorn.error")  # the log that `uvicorn.run(app)` prints
    serve()
    told = [record.message for record in caplog.records if record.name == "uvicorn.error"]
    assert any(line.startswith("preparing the image of env 'counter' with process") for line in told)

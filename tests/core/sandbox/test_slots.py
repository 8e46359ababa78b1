"""Places that processes share, tried with processes."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from waiting import eventually, until

from agent_env_core.errors import ConfigError, Unavailable
from agent_env_core.sandbox import limits
from agent_env_core.sandbox import slots as module
from agent_env_core.sandbox.limits import SharedCount
from agent_env_core.sandbox.slots import Pace, Slots, run_folder

HOLDS = """
import sys
from pathlib import Path
from agent_env_core.sandbox.slots import Slots
slots = Slots(Path(sys.argv[1]), 1)
held = slots.take() if sys.argv[2] == "slot" else slots.queue()
print("held" if held else "none", flush=True)
input()
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the only place, or stands in the queue for it."""
    started = []

    def start(what):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(tmp_path), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def slots(tmp_path):
    return Slots(tmp_path, 1)


def test_a_killed_process_gives_its_place_back(holder, slots):
    process = holder("slot")
    assert slots.take() is None
    process.kill()
    process.wait()
    slots.take().free()


def test_a_place_is_free_though_a_forked_child_has_a_copy(slots):
    slot = slots.take()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    slot.free()
    slots.take().free()
    os.close(write)
    os.waitpid(child, 0)


def test_who_waited_longer_comes_first(holder, slots):
    assert not slots.wanted()
    process = holder("queue")
    assert slots.wanted()
    assert slots.take() is None, "though the place is free"
    mine = slots.queue()
    assert slots.take(mine) is None
    process.kill()
    process.wait()
    slots.take(mine).free()
    mine.close()
    assert not slots.wanted()
    assert not list((slots.folder / "queue").iterdir()), "a dead process's ticket is cleared away"


def test_a_stopped_process_is_passed_by(holder, slots, monkeypatch):
    process = holder("queue")
    process.send_signal(signal.SIGSTOP)
    assert slots.take() is None
    monkeypatch.setattr(module, "STALE", 0.0)
    slots.take().free()
    process.send_signal(signal.SIGCONT)


async def test_who_keeps_others_waiting_is_told(holder, slots, monkeypatch, caplog):
    process = holder("slot")
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)  # noqa: ASYNC222 - it takes effect a moment later
    monkeypatch.setattr(limits, "TELL_AFTER", 0.0)
    monkeypatch.setattr(limits, "FIRST_LOOK", 0.001)
    taking = asyncio.create_task(SharedCount(slots).take())
    await eventually(lambda: caplog.records)
    assert f"in {slots.folder}, held by process {process.pid} (STOPPED)" in caplog.text
    process.kill()
    (await taking)()
    assert len(caplog.records) == 1


def test_a_machine_without_files_left_is_told(slots, monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "_lock", refuse)
    with pytest.raises(Unavailable, match=r"no place can be taken in .*Too many open files"):
        slots.take()


def test_a_folder_that_was_tidied_away_comes_back(slots):
    held = slots.take()
    shutil.rmtree(slots.folder)
    ticket = slots.queue()
    shutil.rmtree(slots.folder)
    slots.take(ticket).free()
    ticket.close()
    held.free()
    shutil.rmtree(slots.folder)
    assert not slots.wanted()
    slots.take().free()


SHARES = """
import asyncio, os, sys
from pathlib import Path
from agent_env_core.sandbox.limits import Limits

log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)

async def use(limits):
    place = await limits.place()
    os.write(log, f"+{sys.argv[4]}\\n".encode())
    await asyncio.sleep(0.005)
    os.write(log, f"-{sys.argv[4]}\\n".encode())
    place.free()

async def main():
    limits = Limits(2, shared=Path(sys.argv[1]))
    print("ready", flush=True)
    input()
    await asyncio.gather(*(use(limits) for _ in range(int(sys.argv[3]))))

asyncio.run(main())
"""


def test_processes_keep_a_limit_together_and_one_with_few_wishes_isnt_last(tmp_path):
    log = tmp_path / "log"
    log.touch()
    wishes = {"many": 40, "more": 40, "some": 10, "one": 1}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARES, str(tmp_path), str(log), str(count), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name, count in wishes.items()
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    slots = Slots(tmp_path / "starting", 2)
    both = [slots.take() for _ in range(2)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    queue = slots.folder / "queue"
    until(lambda: queue.is_dir() and len(list(queue.glob("[0-9]*"))) == len(wishes))  # each stands in it
    for slot in both:
        slot.free()
    for process in processes:
        process.communicate(timeout=100)
        assert process.returncode == 0
    lines = log.read_text().split()
    held = most = 0
    for line in lines:
        held += 1 if line[0] == "+" else -1
        most = max(most, held)
    assert (held, most, len(lines)) == (0, 2, 2 * sum(wishes.values()))
    assert lines.index("-one") < len(lines) / 2


class TestRunFolder:
    def test_it_is_the_users_alone(self, tmp_path, monkeypatch):
        monkeypatch.setenv("AGENT_ENV_RUN_DIR", str(tmp_path / "run"))
        assert run_folder().stat().st_mode & 0o777 == 0o700

    def test_a_link_in_its_place_is_refused(self, tmp_path, monkeypatch):
        (tmp_path / "there").mkdir()
        (tmp_path / "run").symlink_to(tmp_path / "there")
        monkeypatch.setenv("AGENT_ENV_RUN_DIR", str(tmp_path / "run"))
        with pytest.raises(ConfigError, match="is not a folder of yours; set AGENT_ENV_RUN_DIR"):
            run_folder()

    def test_one_without_locks_is_told_with_the_fix(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setenv("AGENT_ENV_RUN_DIR", str(tmp_path))
        monkeypatch.setattr(module.fcntl, "flock", refuse)
        with pytest.raises(ConfigError, match=r"can't be locked: .*No locks available.*set AGENT_ENV_RUN_DIR"):
            run_folder()

    def test_so_is_a_file(self, tmp_path, monkeypatch):
        (tmp_path / "run").touch()
        monkeypatch.setenv("AGENT_ENV_RUN_DIR", str(tmp_path / "run"))
        with pytest.raises(ConfigError, match="can't be used"):
            run_folder()


class TestPace:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch):
        """A clock that stands still."""
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1000.0))

    def test_moments_are_apart(self, tmp_path):
        one, other = Pace(tmp_path / "pace", 10), Pace(tmp_path / "pace", 10)
        offs = [pace.next() for pace in (one, other, one, other)]
        assert offs == pytest.approx([0.0, 0.1, 0.2, 0.3])

    def test_a_stall_builds_up_no_claim(self, tmp_path):
        (tmp_path / "pace").write_text("400.000000")
        pace = Pace(tmp_path / "pace", 1)
        assert pace.next() == 0
        assert pace.next() == 1

    @pytest.mark.parametrize("left", ["", "what?", "9e99"])
    def test_what_another_start_of_the_machine_left_means_nothing(self, tmp_path, left):
        (tmp_path / "pace").write_text(left)
        assert Pace(tmp_path / "pace", 1).next() == 0

"""What namespaces keep apart, and what happens where a machine doesn't allow them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import platform
import shutil
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from agent_env_process import isolation as module
from agent_env_process.environment import MARK
from agent_env_process.isolation import choose
from agent_env_process.procs import members
from agent_env_process.provider import ProcessProvider
from agent_env_process.state import State

from agent_env_core.errors import ConfigError, Gone, ImageError, Unsupported
from agent_env_core.testing.checks.base import eventually as kit_eventually

eventually = partial(kit_eventually, seconds=20, what="what the test waits for")
each = pytest.mark.parametrize("isolation", ["bubblewrap", "namespace"], indirect=True)


@pytest.fixture(autouse=True)
def _allowed(isolation, allowed):
    allowed("namespace" if isolation == "auto" else isolation)


def shell(text):
    return ["sh", "-c", text]


# -- processes and rights


@each
async def test_processes_of_this_machine_are_not_seen(create):
    box = await create(command=("sleep", "600"))
    seen = (await box.exec(shell("cat /proc/[0-9]*/comm"))).stdout.decode().split()
    assert "sleep" in seen
    assert set(seen) <= {"bwrap", "sh", "sleep", "cat"}
    done = await box.exec(shell(f"kill -9 {os.getpid()}"))
    assert done.exit_code != 0


@each
async def test_nothing_in_it_has_any_rights(create):
    box = await create()
    said = (await box.exec(shell("grep -h ^Cap /proc/self/status; grep NoNewPrivs /proc/self/status"))).stdout.decode()
    values = dict(line.split() for line in said.splitlines())
    assert values.pop("NoNewPrivs:") == "1"
    assert {int(value, 16) for value in values.values()} == {0}
    for command in ("mount -t tmpfs none /mnt", "mount -o remount,rw /usr", "umount -l /usr", "chroot / true"):
        assert (await box.exec(shell(f"mkdir -p /mnt; {command}"))).exit_code != 0, command


KEYS = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
key = libc.syscall(KEYCTL, 10, -3, b"user", sys.argv[1].encode(), 0)  # search the session's keyring
print(key, ctypes.get_errno())
"""


@each
async def test_keys_of_a_login_are_not_there(create):
    """The kernel's keyrings are in no namespace, and pass to whatever a login starts."""
    numbers = {"x86_64": (248, 250), "aarch64": (217, 219)}
    if platform.machine() not in numbers:
        pytest.skip("numbers of its calls aren't known here")
    add, keyctl = numbers[platform.machine()]
    libc, name = ctypes.CDLL(None, use_errno=True), f"agent-env-{os.getpid()}"
    key = libc.syscall(add, b"user", name.encode(), b"secret", 6, -3)
    if key < 0:
        pytest.skip(f"no keyrings here: {os.strerror(ctypes.get_errno())}")
    try:
        main = KEYS.replace("KEYCTL", str(keyctl))
        argv = [sys.executable, "-c", main, name]
        mine = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
        assert (await mine.communicate())[0].split()[0] == str(key).encode(), "what a child of this process sees"
        box = await create(command=("sh", "-c", "sleep 600"))
        assert (await box.exec(["python3", "-c", main, name])).stdout == f"-1 {errno.ENOSYS}\n".encode()
        first = await box.exec(["grep", "-h", "^Seccomp:", "/proc/1/status", "/proc/self/status"])
        assert first.stdout.split()[1::2] == [b"2", b"2"], "nor by way of the first process"
    finally:
        libc.syscall(keyctl, 9, key, -3)  # unlink


@each
async def test_a_program_planted_in_it_runs_with_no_rights_either(create):
    """A command passes through the sandbox's files before it runs; none of those may be run with our rights."""
    box = await create(env={"LD_LIBRARY_PATH": "/app/lib", "PATH": "/app/bin:/usr/bin:/bin"})
    planted = b"#!/bin/sh\ngrep ^CapEff /proc/self/status\n"
    for place in ("/app/bin/setpriv", "/app/bin/sh", "/app/os.py", "/app/ctypes/__init__.py"):
        await box.write(place, planted)
    await box.exec(["/bin/chmod", "755", "/app/bin/setpriv", "/app/bin/sh"])
    assert (await box.exec(["sh"], cwd="/app")).stdout.split()[-1] == b"0" * 16


@pytest.mark.parametrize("isolation", ["none", "namespace", "bubblewrap"], indirect=True)
async def test_short_of_memory_the_kernel_ends_a_sandbox_first(create):
    """Before the server and the trainer: each process of it, those that hold namespaces too."""
    box = await create(command=("sh", "-c", "sleep 600 & sleep 600"))
    assert (await box.exec(["cat", "/proc/self/oom_score_adj"])).stdout == b"1000\n"

    async def all_of_it():
        seen = [_goes_first(each.pid) for each in members(f"{MARK}={box.id}")]
        return len(seen) > 2 and all(seen)

    await eventually(all_of_it)
    assert not _goes_first(os.getpid())


def _goes_first(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 900


@each
async def test_a_tree_that_hides_is_ended(create, provider, no_processes_left):
    script = (
        "import os, subprocess, time\n"
        "if os.fork(): os._exit(0)\n"  # its parent is gone, its session its own, its environment empty
        "os.setsid()\n"
        "os.execve('/bin/sleep', ['sleep', '613'], {})\n"
    )
    box = await create()
    assert (await box.exec(["python3", "-c", script])).exit_code == 0

    def hiding():
        return [process for process in psutil.process_iter() if "613" in _command(process)]

    await eventually(lambda: asyncio.sleep(0, hiding()))
    assert await provider.kill(box.id)
    assert hiding() == []


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@each
async def test_a_sandbox_whose_namespaces_are_killed_is_gone(create, config):
    box = await create()
    holder = State(Path(config["state_dir"])).load(box.id).holder
    os.kill(holder.pid, 9)

    async def gone():
        with contextlib.suppress(Gone):
            await box.exec(["true"])
            return False
        return True

    await eventually(gone)
    with pytest.raises(Gone, match="held its namespaces"):
        await box.read("/app/data/hello.txt")
    assert members(f"{MARK}={box.id}") == []


@each
@pytest.mark.parametrize("counted", [True, False])
async def test_processes_are_limited_where_the_kernel_counts_them(create, provider, monkeypatch, counted):
    """That the kernel keeps to it takes a user who isn't root; see how the README says it was tested."""
    monkeypatch.setattr(module.Isolation, "counts_processes", counted)
    provider.settings = provider.settings.model_copy(update={"pids": 40})
    box = await create(command=("sleep", "600"))
    look = "cat /proc/self/limits; for each in /proc/[0-9]*; do cat $each/limits; done"
    said = (await box.exec(shell(f"({look}) | grep -c 'processes *40 *40 '"))).stdout
    assert (int(said) > 1) == counted, "of a command and of the main process"


@pytest.mark.parametrize(
    ("uid", "release", "user", "counted"),
    [
        (1000, "5.14.0-503.el9", True, True),
        (1000, "6.8.0", True, True),
        (1000, "5.4.0-1", True, False),
        (1000, "6.8.0", False, False),
        (0, "6.8.0", True, False),
    ],
)
def test_which_kernels_count_processes(monkeypatch, uid, release, user, counted):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"release": release}))
    assert module.Isolation("namespace", user).counts_processes == counted


@each
async def test_what_was_stopped_ends_too(create, provider, no_processes_left):
    box = await create(command=("sh", "-c", "sh -c 'kill -STOP $$' & kill -STOP $$"))
    done = await box.exec(shell("sh -c 'kill -STOP $$' & kill -STOP $$; echo never"), timeout=1)
    assert (done.timed_out, done.stdout) == (True, b"")
    assert (await box.exec(["echo", "next"])).stdout == b"next\n"
    assert await provider.kill(box.id)


@each
async def test_a_terminal_can_be_had(create):
    box = await create()
    if shutil.which("script") is None:
        pytest.skip("script isn't installed")
    done = await box.exec(["script", "-qec", "tty", "/dev/null"])
    assert done.stdout.strip() == b"/dev/pts/0", done


# -- network


@each
async def test_no_network_is_none_at_all(create):
    box = await create(network="none")
    assert (await box.exec(shell("grep -c : /proc/net/dev"))).stdout == b"1\n"
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname())"
    assert (await box.exec(["python3", "-c", code])).exit_code == 0, "its own loopback works"
    with pytest.raises(Unsupported, match="can't be reached with network='none'"):
        await create(network="none", ports=(80,), port_env={"PORT": 80})


OPEN_ALL = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def said(result):
    return "open" if result >= 0 else os.strerror(ctypes.get_errno())
kinds = {"unix": 1, "inet": 2, "inet6": 10, "netlink": 16, "vsock": 40, "vsock, the upper half set": 40 | 1 << 32}
for name, kind in kinds.items():
    print(name, said(libc.syscall(ctypes.c_long({"x86_64": 41}.get(os.uname().machine, 198)), ctypes.c_long(kind),
                                  ctypes.c_long(3 if kind == 16 else 1), ctypes.c_long(0))), sep=": ")
print("io_uring", said(libc.syscall(425, 1, None)), sep=": ")
"""


@each
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the numbers of calls are theirs")
async def test_no_socket_leads_past_a_network_of_its_own(create):
    box = await create(network="none")
    said = (await box.exec(["python3", "-c", OPEN_ALL])).stdout.decode()
    opened = dict.fromkeys(("unix", "inet", "inet6", "netlink"), "open")
    refused = dict.fromkeys(("vsock", "vsock, the upper half set"), os.strerror(errno.EAFNOSUPPORT))
    assert dict(line.split(": ") for line in said.splitlines()) == {
        **opened, **refused, "io_uring": os.strerror(errno.ENOSYS),
    }  # fmt: skip


@each
async def test_a_main_program_that_is_not_there_is_an_image_error(create, provider):
    for program in ("no-such-program", "/app/none", str(Path.home() / "x")):
        with pytest.raises(ImageError, match="there is no program"):
            await create(command=(program,))
    assert [info async for info in provider.list({})] == []


# -- choosing


def test_what_a_machine_does_not_allow_is_refused_with_the_fix(monkeypatch, config):
    monkeypatch.setattr(module, "_attempt", lambda candidate: "new namespaces: Operation not permitted")
    _forget(monkeypatch)
    with pytest.raises(
        ConfigError, match=r"isolation='namespace' can't be kept .*not permitted.*user.max_user_namespaces"
    ):
        ProcessProvider({**config, "isolation": "namespace"})
    provider = ProcessProvider({**config, "isolation": "auto"})
    can = provider.capabilities
    assert (can.isolation, can.private_files, can.network) == ("none", False, frozenset({"open"}))
    assert "not permitted" in provider.explain()


def test_without_bubblewrap_namespaces_are_made_here(monkeypatch, config):
    monkeypatch.setattr(shutil, "which", lambda name, **_: None)
    _forget(monkeypatch)
    with pytest.raises(ConfigError, match=r"bwrap is not installed\): install it"):
        choose("bubblewrap")
    assert choose("auto").kind == "namespace"


def test_which_it_is_is_logged_once(monkeypatch, caplog):
    _forget(monkeypatch)
    with caplog.at_level("INFO", logger="agent_env_process"):
        chosen = choose("auto")
        assert choose("auto") is chosen
    assert [str(chosen) in record.getMessage() for record in caplog.records] == [True]


def _forget(monkeypatch):
    monkeypatch.setattr(module, "choose", module.choose.__wrapped__)
    choose.cache_clear()
    module._tried.cache_clear()


@pytest.fixture(autouse=True)
def _as_before():
    yield
    choose.cache_clear()
    module._tried.cache_clear()

"""Which files of this machine a sandbox with namespaces of its own sees, and which of its own the others see."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

each = pytest.mark.parametrize("isolation", ["bubblewrap", "namespace"], indirect=True)


@pytest.fixture(autouse=True)
def _allowed(isolation, allowed):
    allowed("namespace" if isolation == "auto" else isolation)


def shell(text):
    return ["sh", "-c", text]


@each
async def test_paths_are_what_they_are(create):
    box = await create()
    done = await box.exec(shell("pwd; cat $DATA/hello.txt; echo; hi; echo $HOME $TMPDIR; id -un; hostname"))
    assert done.stdout.decode().split() == ["/app", "hello", "hi", "/root", "/tmp", "root", "sandbox"], done


@each
async def test_what_one_writes_no_other_sees(create):
    one, other = await create(), await create()
    for path in (
        "/tmp/state",
        "/data/state",
        "/etc/state",
        "/state",
        "/var/lib/state",
        "/root/state",
        "/dev/shm/state",
    ):
        said = shell(f"mkdir -p $(dirname {path}) && echo mine > {path}")
        assert (await one.exec(said)).exit_code == 0, path
        assert (await other.exec(["cat", path])).exit_code == 1, path
        assert not await asyncio.to_thread(os.path.exists, path), path
    assert await one.read("/data/state") == b"mine\n"


@each
async def test_this_machines_files_are_hidden_or_read_only(create, tmp_path, state_home):
    secret = tmp_path / "secret"
    secret.write_text("x")
    box = await create()
    hidden = [
        str(secret),
        str(Path.home() / ".ssh"),
        "/home",
        "/etc/shadow",
        "/etc/ssl/private",
        "/var/run/docker.sock",
    ]
    hidden += ["/run", "/sys", "/boot", "/work", "/opt", "/srv", "/mnt"]
    done = await box.exec(shell("".join(f"ls -d {path}; " for path in hidden)))
    assert done.stdout == b"", done.stdout
    for path in ("/usr/bin/x", "/bin/x", "/usr/lib/x", "/etc/resolv.conf"):
        assert (await box.exec(shell(f": >> {path}"))).exit_code != 0, path
        with pytest.raises(PermissionError):
            await box.write(path, b"x")
    # What steers the machine is only looked at: should a wall be missing, a test that writes would do the damage.
    steers = "find /proc -xdev -type f -writable 2>/dev/null | head -3"
    assert (await box.exec(shell(steers))).stdout == b""


KEEP_ITS_MODE = """
import glob, os, sys, time
def changed(path):
    try:
        os.chmod(path, os.stat(path).st_mode & 0o7777)  # as it is: should a wall be missing, no harm is done
        print("changed", os.path.realpath(path))
    except OSError:
        pass
devices = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")]
for path in ["/usr/bin/env", *devices, *glob.glob("/proc/*"), *glob.glob("/proc/self/fd/*")]:
    if os.path.exists(path) and not os.path.isdir(path) and not os.path.realpath(path).startswith("/proc/"):
        changed(path)
print("looking", flush=True)
seen, ends = set(), time.monotonic() + 60
while not os.path.exists("/tmp/enough") and time.monotonic() < ends:
    for path in set(glob.glob("/proc/[0-9]*/exe")) - seen:
        try:
            program = os.readlink(path)
        except OSError:  # not to be seen yet, or ended
            continue
        changed(path)
        if program.endswith("/sleep"):  # before, it was the program that makes a command
            seen.add(path)
"""


@each
async def test_root_of_the_machine_changes_no_mode_of_its_files_there(create):
    """Their owner needs no capability for that, but a way to them: a device, a descriptor, the program of a process."""
    box = await create()
    await box.write("/app/modes.py", KEEP_ITS_MODE.encode())
    looking = asyncio.create_task(box.exec(["python", "-u", "/app/modes.py"]))
    for _ in range(10):
        assert (await box.exec(["sleep", "0.02"])).exit_code == 0
    await box.write("/tmp/enough", b"")
    assert (await looking).stdout == b"looking\n"


@each
async def test_what_holds_the_namespaces_can_be_told_nothing(create):
    """What it says is read by the server, all of it."""
    box = await create()
    done = await box.exec(shell("ls /proc/1/fd; ls -l /proc/2/fd | grep -v /dev/null | grep -- '->'"))
    assert done.stdout == b"", done


@each
async def test_a_link_leads_nowhere_out_of_the_sandbox(create, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    box = await create()
    await box.exec(
        shell(f"ln -s {secret} /app/link; ln -s {tmp_path} /app/folder; mkfifo /app/pipe; ln -s loop /app/loop")
    )
    for path in ("/app/link", "/app/folder/secret", f"/app/../../../../..{secret}"):
        with pytest.raises(FileNotFoundError):
            await box.read(path)
    await box.write("/app/link", b"mine")
    assert secret.read_text() == "secret"
    assert (await box.exec(["cat", str(secret)])).stdout == b"mine"
    await box.exec(shell("ln -s /proc/kmsg /app/kernel"))  # which this process may read, and the sandbox may not
    for path in ("/app/pipe", "/app/loop", "/dev/null", "/app/kernel", "/proc/1/environ"):
        with pytest.raises(PermissionError):
            await box.read(path)


@each
async def test_a_python_installed_in_a_home_is_seen_and_the_home_is_not(create):
    box = await create()
    code = "import sys, ssl, sqlite3, json; print(sys.base_prefix)"
    done = await box.exec(["python3", "-c", code])
    assert done.stdout.decode().strip() == sys.base_prefix, done
    home = str(Path.home())
    if sys.base_prefix.startswith(home):
        seen = (await box.exec(["ls", "-A", home])).stdout.decode().split()
        assert set(seen) < set(os.listdir(home)), seen

"""What is this provider's own: addresses, environments, logs, and finding sandboxes of other processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import stat
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from agent_env_process import provider as provider_module
from agent_env_process.environment import MARK
from agent_env_process.procs import Known, members
from agent_env_process.provider import ProcessProvider
from agent_env_process.state import State

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, Unavailable, Unsupported
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.testing.checks.base import eventually as kit_eventually

eventually = partial(kit_eventually, seconds=20, what="what the test waits for")

without_namespaces = pytest.mark.parametrize("isolation", ["none"], indirect=True)
with_and_without = pytest.mark.parametrize("isolation", ["none", "auto"], indirect=True)


@pytest.fixture
def state(config):
    return State(Path(config["state_dir"]))


@pytest.fixture
async def spec(provider, tmp_path, context):
    folder = tmp_path / "context"
    folder.mkdir()
    lines = ("FROM python:3.11-slim", "WORKDIR /app", "ENV DATA=/app/data TWICE=/app:/app/x", "COPY hello.txt data/")
    return SandboxSpec(await provider.prepare(context(folder, "\n".join(lines), hello__txt="hello")), 600)


@pytest.fixture
async def create(provider, spec):
    made = []

    async def create(**settings):
        box = await provider.create(SandboxSpec(**{**vars(spec), **settings}))
        made.append(box)
        return box

    yield create
    for box in made:
        await provider.kill(box.id)


async def gone(box):
    """How the sandbox ended, or nothing while it lives."""
    try:
        await box.endpoint(1)
    except Gone as exc:
        return str(exc)
    except Unsupported:
        return ""


# -- addresses


async def test_a_port_without_a_variable_is_refused(create, provider):
    with pytest.raises(Unsupported, match=r"ports \[81\] need a variable in port_env"):
        await create(ports=(80, 81), port_env={"PORT": 80})
    assert [info async for info in provider.list({})] == []


async def test_all_interfaces_become_loopback(create):
    env = {"MCP_HOST": "0.0.0.0", "OTHER": "0.0.0.0/8"}
    command = ("sh", "-c", 'echo "$0 $MCP_HOST $OTHER" > said.part; mv said.part said; exec sleep 600', "0.0.0.0")
    box = await create(command=command, env=env)

    async def said():
        try:
            return await box.read("/app/said")
        except FileNotFoundError:
            return None

    assert await eventually(said) == b"127.0.0.1 127.0.0.1 0.0.0.0/8\n"


async def test_the_ports_of_an_ended_sandbox_are_free_again(create, provider):
    import socket

    box = await create(ports=(80,), port_env={"PORT": 80})
    port = int((await box.endpoint(80)).url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))
    await provider.kill(box.id)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


# -- environments and paths


@without_namespaces
async def test_the_environment_is_built_from_nothing(create, monkeypatch, state):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("TZ", "UTC")
    box = await create(env={"GIVEN": "1"}, ports=(80,), port_env={"PORT": 80})
    seen = dict(line.split("=", 1) for line in (await box.exec(["env"])).stdout.decode().splitlines())
    root = state.root(box.id)
    assert {"HF_TOKEN", "PYTHONPATH", "AGENT_ENV_COMMAND_"}.isdisjoint(seen)
    assert (seen["GIVEN"], seen["TZ"], seen["HOME"], seen["TMPDIR"]) == ("1", "UTC", f"{root}/root", f"{root}/tmp")
    assert (seen["DATA"], seen["TWICE"]) == (f"{root}/app/data", f"{root}/app:{root}/app/x")
    assert seen["PORT"] == (await box.endpoint(80)).url.rpartition(":")[2]
    assert seen[MARK] == box.id
    assert str(Path(sys.prefix) / "bin") not in seen["PATH"].split(":")
    assert (await box.exec(["sh", "-c", 'cd "$HOME" && cd "$TMPDIR"'])).exit_code == 0


@with_and_without
async def test_the_environment_is_as_asked_where_python_would_add_to_it(create):
    box = await create(env={"LANG": "C"})
    assert (await box.exec(["sh", "-c", "echo $LANG $LC_CTYPE"])).stdout == b"C\n"


@without_namespaces
async def test_container_paths_mean_the_sandboxs_files(create):
    box = await create()
    assert (await box.exec(["cat", "/app/data/hello.txt"])).stdout == b"hello"
    assert (await box.exec(["sh", "-c", "cat /app/data/hello.txt $DATA/hello.txt"])).stdout == b"hellohello"
    assert await box.read("/app/data/hello.txt") == b"hello"
    assert (await box.exec(["pwd"], cwd="/usr")).stdout == b"/usr\n", "a folder that only the machine has"
    assert (await box.exec(["pwd"], cwd="/no/such/folder")).exit_code == 126


@without_namespaces
async def test_temporary_files_go_to_the_sandbox(create, state):
    box = await create()
    done = await box.exec(["python3", "-c", "import tempfile; print(tempfile.mkstemp()[1])"])
    assert done.stdout.decode().startswith(str(state.root(box.id)))


async def test_only_the_user_may_look_into_sandboxes(create, state):
    box = await create(env={"SECRET": "x"})
    lease = next((state.folder / "leases").glob(f"{box.id}*"))
    assert stat.S_IMODE(lease.stat().st_mode) == 0o600
    assert stat.S_IMODE(state.root(box.id).stat().st_mode) == 0o700
    for folder in ("leases", "boxes"):
        assert stat.S_IMODE((state.folder / folder).stat().st_mode) == 0o700


# -- ends


@with_and_without
async def test_a_main_process_that_ends_is_reported_with_its_last_words(create):
    box = await create(command=("sh", "-c", "echo starting; echo 'no module named x' >&2; exit 3"))
    said = await eventually(lambda: gone(box))
    assert "its main process exited with code 3; it last said:\nstarting\nno module named x" in said


@with_and_without
async def test_a_main_process_that_is_killed_is_reported(create, state):
    box = await create(command=("sleep", "600"))
    os.kill(state.load(box.id).main.pid, 9)
    assert "its main process was killed by signal 9; it said nothing" in await eventually(lambda: gone(box))


@with_and_without
async def test_with_the_main_process_everything_ends(create, state):
    box = await create(command=("sh", "-c", "setsid sleep 600 & sleep 600"))
    command = asyncio.create_task(box.exec(["sleep", "600"]))
    await eventually(lambda: asyncio.sleep(0, len(members(f"{MARK}={box.id}")) >= 4))
    os.kill(state.load(box.id).main.pid, 9)
    with pytest.raises(Gone, match="killed by signal 9"):
        await command
    await eventually(lambda: asyncio.sleep(0, not members(f"{MARK}={box.id}")))


@with_and_without
async def test_a_main_program_that_is_not_there_is_an_image_error(create, provider):
    with pytest.raises(ImageError, match="there is no program no-such-program"):
        await create(command=("no-such-program",))
    assert [info async for info in provider.list({})] == []


async def test_the_main_processes_log_is_bounded(create, state):
    box = await create(command=("sh", "-c", "seq 1 200000; echo the end; exec sleep 600"))

    async def end():
        return b"the end" in b"".join(path.read_bytes() for path in state.box(box.id).glob("main.log*"))

    await eventually(end)
    assert sum(path.stat().st_size for path in state.box(box.id).glob("main.log*")) < 1_200_000


@without_namespaces
async def test_a_tree_that_hides_is_ended(create, provider):
    script = (
        "import os, subprocess\n"
        "for how in ({}, {'start_new_session': True}, {'env': {'PATH': os.environ['PATH']}}):\n"
        "    print(subprocess.Popen(['sleep', '600'], **how).pid, flush=True)\n"
        "open('ready', 'w').close()\n"
        "import time; time.sleep(600)\n"
    )
    box = await create(command=("python3", "-u", "-c", script))

    async def ready():
        try:
            return await box.read("/app/ready") == b""
        except FileNotFoundError:
            return False

    await eventually(ready)
    started = {known.pid for known in members(f"{MARK}={box.id}")}
    assert await provider.kill(box.id)
    left = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []


DELAYS = (0, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02)


@with_and_without
async def test_an_exec_cancelled_at_any_moment_leaves_nothing(create):
    box = await create()
    before = members(f"{MARK}={box.id}")
    for delay in DELAYS:
        call = asyncio.create_task(box.exec(["sh", "-c", "sleep 600 & sleep 600"], stdin=b"x" * 100_000))
        await asyncio.sleep(delay)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert members(f"{MARK}={box.id}") == before


@with_and_without
async def test_a_create_cancelled_at_any_moment_leaves_nothing(provider, spec, state, no_processes_left):
    for delay in DELAYS:
        command = ("sh", "-c", "sleep 600 & sleep 600")
        create = asyncio.create_task(provider.create(SandboxSpec(**{**vars(spec), "command": command})))
        await asyncio.sleep(delay)
        create.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await provider.kill((await create).id)
    assert list(state.records()) == []
    assert os.listdir(state.folder / "boxes") == []


@without_namespaces
async def test_without_pidfds_ends_are_noticed_too(create, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    box = await create(command=("sh", "-c", "exit 5"))
    assert "exited with code 5" in await eventually(lambda: gone(box))
    other = await create()
    assert (await other.exec(["sh", "-c", "exit 6"])).exit_code == 6


async def test_a_sandbox_that_will_not_end_is_not_forgotten(create, provider, monkeypatch):
    box = await create(command=("sleep", "600"))
    with monkeypatch.context() as patch:
        patch.setattr(provider_module, "end_all", lambda mark, *leaders: [4711])
        with pytest.raises(Unavailable, match=r"processes \[4711\]"):
            await provider.kill(box.id)
    assert [info.id async for info in provider.list({})] == [box.id]
    assert await provider.kill(box.id)


@with_and_without
async def test_a_folder_without_write_permission_goes_too(create, provider, state):
    box = await create()
    await box.exec(["sh", "-c", "mkdir -p locked/in; touch locked/in/x; chmod 500 locked/in locked"])
    assert await provider.kill(box.id)
    assert not state.box(box.id).exists()


@pytest.mark.parametrize(("number", "error"), [(errno.EMFILE, Busy), (errno.ENOMEM, Busy), (errno.ENOSPC, ConfigError)])
async def test_a_machine_without_room_is_busy_but_a_full_disk_wants_tidying(
    create, monkeypatch, provider, number, error
):
    def without_room(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(provider_module, "copy_tree", without_room)
    with pytest.raises(error, match=os.strerror(number)):
        await create()
    assert [info async for info in provider.list({})] == []


async def test_a_state_folder_that_cant_be_written_is_a_matter_of_configuration(provider, spec, tmp_path, config):
    (tmp_path / "file").touch()
    other = ProcessProvider({**config, "state_dir": str(tmp_path / "file" / "x")})
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        await other.create(spec)
    with pytest.raises(ConfigError, match="XDG_STATE_HOME"):  # a server is told before it listens
        await other.prepare(Image(context=tmp_path))


async def test_a_sandbox_whose_file_cant_be_read_now_is_not_gone(create, state, monkeypatch):
    box = await create()
    real = Path.read_text

    def without_files_left(path, *args, **more):
        if path.stem == box.id:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", without_files_left)
        with pytest.raises(Unavailable, match="Too many open files"):
            await box.exec(["true"])
    assert (await box.exec(["true"])).exit_code == 0


# -- other processes

ATTACH = """
import asyncio, json, sys
from agent_env_process.provider import ProcessProvider
async def main():
    provider = ProcessProvider(json.loads(sys.argv[1]))
    found = [info.id async for info in provider.list({"mine": "yes"})]
    box = await provider.attach(found[0])
    said = await box.exec(["cat", "/app/data/hello.txt"])
    await box.write("/app/from-afar", b"hi")
    await box.extend(5000)
    print(json.dumps([found, said.stdout.decode(), (await box.endpoint(80)).url, await provider.kill(box.id)]))
asyncio.run(main())
"""


@with_and_without
async def test_another_process_can_use_and_end_a_sandbox(create, config, state):
    box = await create(command=("sleep", "600"), labels={"mine": "yes"}, ports=(80,), port_env={"PORT": 80})
    call = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ATTACH, json.dumps(config), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await call.communicate()
    found, said, url, killed = json.loads(out)
    assert (found, said, killed) == ([box.id], "hello", True)
    assert url.startswith("http://127.0.0.1:")
    assert "signal 9" in await eventually(lambda: gone(box)) or "killed" in await gone(box)
    assert not state.box(box.id).exists()


@with_and_without
async def test_another_process_sees_that_a_main_process_ended(create, config, state):
    box = await create(command=("sh", "-c", "echo last words; exit 1"))
    await eventually(lambda: gone(box))
    with pytest.raises(Gone, match="last words"):
        await ProcessProvider(config).attach(box.id)


async def test_a_change_never_brings_an_ended_sandbox_back(create, provider, state):
    box = await create()
    await provider.kill(box.id)
    assert state.update(box.id, labels={}) is None
    assert list(state.records()) == []


async def test_a_reused_number_is_not_the_main_process(create, state, config):
    box = await create(command=("sleep", "600"))
    state.update(box.id, main=Known(os.getpid(), "1"))
    with pytest.raises(Gone):
        await ProcessProvider(config).attach(box.id)
    assert await ProcessProvider(config).kill(box.id)
    assert psutil.pid_exists(os.getpid())


@without_namespaces
async def test_creating_takes_milliseconds(create):
    took = []
    for _ in range(5):
        began = time.perf_counter()
        await create(command=("sleep", "600"))
        took.append(time.perf_counter() - began)
    assert min(took) < 0.25  # about 10 ms on an idle machine; a loaded one must not fail


def test_nothing_heavy_is_imported_with_the_plugin():
    code = "import sys, agent_env_process.plugin; print([m for m in sys.modules if m.startswith('agent_env_process.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['agent_env_process.settings', 'agent_env_process.plugin']\n"

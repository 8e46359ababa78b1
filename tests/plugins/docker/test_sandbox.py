"""Sandboxes on a real engine: what is particular to containers. The rest is the conformance kit's."""

from __future__ import annotations

import asyncio
import contextlib
import time

import httpx
import pytest
from agent_env_docker import execs
from agent_env_docker import provider as provider_module
from agent_env_docker.provider import KEPT_CAPABILITIES, DockerProvider
from agent_env_docker.settings import Settings

from agent_env_core.errors import Gone, ImageError, Unavailable, Unsupported
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.sandbox.leases import EXPIRES_LABEL

pytestmark = pytest.mark.docker
BASE = "python:3.11-slim"
SERVER = ("python3", "-m", "http.server", "8000")


def python(code: str) -> list[str]:
    return ["python3", "-c", code]


async def commands(sandbox) -> list[str]:
    """The command lines of all processes in a sandbox, but of those that look."""
    script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done"
    lines = (await sandbox.exec(["sh", "-c", script])).stdout.decode().splitlines()
    return [line.strip() for line in lines if line.strip() and "cmdline" not in line and not line.startswith("tr ")]


# -- what it is made of


async def test_what_a_container_is_given(make, engine, base):
    sandbox = await make(command=("sleep", "99"), ports=(8000,), memory_mb=100, cpu=0.5, env={"A": "1"}, workdir="/usr")
    info = engine.api.inspect_container(sandbox.id)
    host = info["HostConfig"]
    assert host["Init"] is True
    assert host["Memory"] == host["MemorySwap"] == 100 << 20
    assert host["NanoCpus"] == 5 * 10**8
    assert host["PidsLimit"] == 512
    assert host["CapDrop"] == ["ALL"]
    assert [name.removeprefix("CAP_") for name in host["CapAdd"]] == list(KEPT_CAPABILITIES)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert host["NetworkMode"] == "agent-env"
    assert host["LogConfig"]["Config"] == {"max-size": "4m", "max-file": "1"}
    assert not host["Binds"]
    assert not info["Mounts"]
    assert not host["Privileged"]
    assert not host["Devices"]
    assert [host[kind] for kind in ("PidMode", "UTSMode", "UsernsMode")] == ["", "", ""]
    assert host["IpcMode"] == "private"
    assert (await sandbox.exec(["sh", "-c", "ls /var/run/docker.sock /run/docker.sock"])).exit_code != 0
    assert info["NetworkSettings"]["Ports"]["8000/tcp"][0]["HostIp"] == "127.0.0.1"
    assert info["Config"]["Image"] == base
    assert (await sandbox.exec(["sh", "-c", "echo $A; pwd"])).stdout == b"1\n/usr\n"


async def test_nothing_of_the_hosts_environment_enters(make, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://proxy:1"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    text = (await (await make()).exec(["env"])).stdout.decode()
    assert "proxy:1" not in text
    assert "SECRET_OF_THE_HOST" not in text


async def test_what_root_can_and_cannot_do(make):
    sandbox = await make()
    able = "touch /x && chown 1:1 /x && chmod 4755 /x && su daemon -s /bin/sh -c 'id -u'"
    done = await sandbox.exec(["sh", "-c", able])
    assert (done.exit_code, done.stdout) == (0, b"1\n"), done
    for refused in ("mknod /y b 7 0", "mount -t tmpfs none /mnt", "hostname other", "chroot / true"):
        assert (await sandbox.exec(["sh", "-c", refused])).exit_code != 0, refused


async def test_two_sandboxes_never_see_each_others_files(make):
    one, two = await asyncio.gather(make(), make())
    await asyncio.gather(one.write("/srv/state", b"one"), two.write("/srv/state", b"two"))
    assert (await one.read("/srv/state"), await two.read("/srv/state")) == (b"one", b"two")


async def test_a_port_leads_to_the_main_process(make, provider):
    sandbox = await make(command=SERVER, ports=(8000, 8001))
    endpoint = await sandbox.endpoint(8000)
    assert endpoint.url.startswith("http://127.0.0.1:")
    assert endpoint.url != (await sandbox.endpoint(8001)).url
    assert (await (await provider.attach(sandbox.id)).endpoint(8000)) == endpoint
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=0)) as client:
        deadline = time.monotonic() + 20
        while True:
            try:
                assert (await client.get(f"{endpoint.url}/etc/hostname")).status_code == 200
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
    with pytest.raises(Unsupported, match="port 9 was not named"):
        await sandbox.endpoint(9)


async def test_no_network(make, engine):
    sandbox = await make(network="none")
    assert (await sandbox.exec(["sh", "-c", "grep -c : /proc/net/dev"])).stdout == b"1\n"  # the loopback
    reach = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
    gateway = engine.api.inspect_network("bridge")["IPAM"]["Config"][0].get("Gateway") or "172.17.0.1"
    for place in ("169.254.169.254", gateway):  # a cloud's metadata, and the host
        refused = await sandbox.exec([*python(reach), place, "80"])
        assert (refused.exit_code, b"Network is unreachable" in refused.stderr) == (1, True), (place, refused)
    with pytest.raises(Unsupported, match="network='none'"):
        await make(network="none", ports=(8000,))


# -- images that make trouble


@pytest.mark.parametrize("entrypoint", ['["python3"]', "exit 1"])
async def test_an_entrypoint_neither_runs_nor_swallows_the_command(provider, make, context, entrypoint):
    image = await provider.prepare(Image(context=context(f"FROM {BASE}\nENTRYPOINT {entrypoint}\nCMD exit 1\n")))
    idle, busy = await asyncio.gather(make(image), make(image, command=("sleep", "77")))
    assert (await idle.exec(["echo", "on"])).stdout == b"on\n"
    assert "sleep 77" in await commands(busy)


async def test_a_healthcheck_of_the_image_does_not_run(provider, make, context, engine):
    image = await provider.prepare(Image(context=context(f"FROM {BASE}\nHEALTHCHECK --interval=1s CMD exit 1\n")))
    assert "Health" not in engine.api.inspect_container((await make(image)).id)["State"]


async def test_an_image_without_sleep_needs_a_command(provider, make, context, leftovers):
    image = await provider.prepare(Image(context=context(f"FROM {BASE}\nRUN rm /usr/bin/sleep\n")))
    with pytest.raises(ImageError, match=r"needs `sleep` and `sh` .*sleep"):
        await make(image)
    assert not leftovers()
    sandbox = await make(image, command=("python3", "-c", "import time; time.sleep(99)"))
    assert (await sandbox.exec(["echo", "on"])).stdout == b"on\n"


async def test_an_image_without_a_shell_has_files_and_ports_and_says_what_exec_needs(provider, make, context):
    image = await provider.prepare(
        Image(context=context(f"FROM {BASE}\nRUN python3 -c 'import os; os.remove(\"/bin/sh\")'\n"))
    )
    sandbox = await make(image, command=("python3", "-c", "import time; time.sleep(99)"))
    await sandbox.write("/data", b"1")
    assert await sandbox.read("/data") == b"1"
    done = await sandbox.exec(["echo"])
    assert done.exit_code == 127
    assert b"through `sh`, which this image does not have" in done.stderr


async def test_an_image_that_is_gone(make, leftovers):
    with pytest.raises(ImageError, match="agent-env/none:1"):
        await make("agent-env/none:1")
    assert not leftovers()


async def test_what_is_written_belongs_to_the_images_user(provider, make, context):
    image = await provider.prepare(Image(context=context(f"FROM {BASE}\nRUN useradd -u 1234 me\nUSER me\n")))
    sandbox = await make(image)
    await sandbox.write("/srv/made/for/file", b"1")
    done = await sandbox.exec(
        ["sh", "-c", "echo 2 >/srv/made/for/file && touch /srv/made/x && stat -c %u:%a /srv/made"]
    )
    assert (done.exit_code, done.stdout) == (0, b"1234:755\n"), done
    assert await sandbox.read("/srv/made/for/file") == b"2\n"


# -- files


async def test_files_keep_their_mode_and_links_are_followed(make):
    sandbox = await make()
    await sandbox.exec(["sh", "-c", "echo a >/srv/real; chmod 751 /srv/real; ln -s real /srv/link; ln -s /srv /dir"])
    await sandbox.write("/srv/link", b"b")
    assert await sandbox.read("/srv/real") == await sandbox.read("/srv/link") == await sandbox.read("/dir/real") == b"b"
    assert (await sandbox.exec(["stat", "-c", "%a", "/srv/real"])).stdout == b"751\n"
    await sandbox.write("/dir/new/file", b"c")
    assert await sandbox.read("/srv/new/file") == b"c"


async def test_files_of_any_size(make):
    sandbox = await make()
    for size in (50_000_000, 200_000, 1, 0):
        data = (b"\x00\xff\r\n" * (size // 4 + 1))[:size]
        await sandbox.write("/srv/ä b/file", data)
        assert await sandbox.read("/srv/ä b/file") == data
    await sandbox.exec(["truncate", "-s", "1T", "/srv/sparse"])
    with pytest.raises(PermissionError, match="more than 512 MiB"):
        await sandbox.read("/srv/sparse")
    assert await sandbox.read("/srv/ä b/file") == b""


async def test_errors_of_files(make):
    sandbox = await make()
    for path, error in {
        "/none/x": FileNotFoundError,
        "/etc": IsADirectoryError,
        "/etc/passwd/x": NotADirectoryError,
        "/proc/version": PermissionError,
    }.items():
        with pytest.raises(error):
            await sandbox.read(path)
    for path, error in {
        "/etc": IsADirectoryError,
        "/etc/passwd/x": NotADirectoryError,
        "/dev/shm/x": PermissionError,
    }.items():
        with pytest.raises(error):
            await sandbox.write(path, b"")
    with pytest.raises(ValueError, match="absolute"):
        await sandbox.read("etc/passwd")


# -- commands


async def test_no_output_is_lost_when_many_commands_run_at_once(make):
    sandbox = await make()
    done = await asyncio.gather(*(sandbox.exec(["sh", "-c", f"echo {i}; echo {i} >&2"]) for i in range(24)))
    assert [(one.stdout, one.stderr) for one in done] == [(b"%d\n" % i, b"%d\n" % i) for i in range(24)]


async def test_a_timeout_kills_the_whole_tree_and_keeps_the_output(make):
    sandbox = await make()
    before = await commands(sandbox)
    tree = "echo part; setsid sleep 1001 & (sleep 1002; true) & trap '' TERM; sleep 1003; true"
    began = time.monotonic()
    done = await sandbox.exec(["sh", "-c", tree], timeout=3)
    assert time.monotonic() - began < 60
    assert (done.exit_code, done.timed_out, done.stdout) == (None, True, b"part\n")
    assert await commands(sandbox) == before


async def test_a_timeout_at_any_moment_of_the_start_leaves_nothing_running(make):
    sandbox = await make()
    before = await commands(sandbox)
    for timeout in (0.0, 0.005, 0.01, 0.02, 0.04, 0.08):
        assert (await sandbox.exec(["sleep", "1004"], timeout=timeout)).timed_out
    assert await commands(sandbox) == before


async def test_a_call_cancelled_at_any_moment_leaves_nothing_running(make):
    sandbox = await make()
    before = await commands(sandbox)
    for delay in (0.0, 0.01, 0.03, 0.3):
        call = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 1005 & sleep 1006"]))
        await asyncio.sleep(delay)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await commands(sandbox) == before


async def test_what_a_command_was_to_read_is_gone_where_it_never_began(make, engine):
    sandbox = await make()
    given_up = execs.Command(sandbox.id, ["cat"], {}, None, b"secret", 1 << 20)
    given_up.kill(engine.api)  # as an early cancel does
    with contextlib.suppress(Unavailable):
        await asyncio.to_thread(given_up.run, engine.api)
    assert (await sandbox.exec(["cat"], stdin=b"secret", cwd="/none")).exit_code in (126, 127)
    assert (await sandbox.exec(["ls", "-A", "/tmp"])).stdout == b""


async def test_a_command_that_closes_its_output_is_waited_for(make):
    done = await (await make()).exec(["sh", "-c", "exec >&- 2>&-; sleep 0.5; exit 7"])
    assert done.exit_code == 7


async def test_a_background_process_outlives_its_command(make):
    sandbox = await make()
    assert (await sandbox.exec(["sh", "-c", "sleep 1007 >/dev/null 2>&1 & echo on"])).stdout == b"on\n"
    assert "sleep 1007" in await commands(sandbox)


async def test_commands_that_cannot_start_are_results(make):
    sandbox = await make()
    assert (await sandbox.exec(["none"])).exit_code == 127
    assert (await sandbox.exec(["/etc"])).exit_code == 126
    assert (await sandbox.exec(["echo", "x" * 200_000])).exit_code == 126
    missing = await sandbox.exec(["true"], cwd="/none")
    assert missing.exit_code == 126
    assert b"/none" in missing.stderr
    assert missing.stdout == b""


async def test_output_is_bounded(base, provider, label):
    small = DockerProvider(Settings(output_mb=1))
    sandbox = await small.create(SandboxSpec(image=base, ttl=60, labels=label))
    done = await sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero; echo end >&2"])
    assert done.exit_code == 0
    assert done.stdout[: 1 << 20] == bytes(1 << 20)
    assert done.stdout[1 << 20 :] == b"\n[agent-env: 1951424 more bytes were dropped]\n"
    assert done.stderr == b"end\n"
    await small.kill(sandbox.id)
    await small.aclose()


# -- whose it is, and until when


async def test_other_peoples_containers_are_none_of_ours(provider, engine, base, label):
    theirs = engine.api.create_container(base, entrypoint=["sleep", "999"], labels=label)["Id"]
    engine.api.start(theirs)
    assert [info.id async for info in provider.list(label)] == []
    with pytest.raises(Gone, match="no sandbox of agent-env"):
        await provider.attach(theirs)
    assert await provider.kill(theirs) is False
    assert engine.api.inspect_container(theirs)["State"]["Running"]


async def test_the_list_shows_leases_as_last_renewed_and_what_has_ended(make, provider, label):
    sandbox, dead = await asyncio.gather(make(ttl=100), make(command=("true",)))
    await sandbox.extend(5000)
    await sandbox.extend(9000)
    found = {info.id: dict(info.labels) async for info in provider.list(label)}
    assert set(found) == {sandbox.id, dead.id}
    assert 8990 < float(found[sandbox.id][EXPIRES_LABEL]) - time.time() < 9001
    assert label.items() <= found[sandbox.id].items()
    assert (await (await provider.attach(sandbox.id)).exec(["echo", "on"])).stdout == b"on\n"
    with pytest.raises(Unsupported):
        await sandbox.extend(float("inf"))


async def test_a_lease_may_be_renewed_twice_in_a_second(make, monkeypatch):
    """Its end is in whole seconds, and an engine refuses a name that is there already."""
    sandbox = await make()
    monkeypatch.setattr(provider_module, "expires_label", lambda ttl: "99999999999")
    await sandbox.extend(600)
    await sandbox.extend(600)

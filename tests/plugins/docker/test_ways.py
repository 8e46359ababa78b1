"""The ways to an engine: TLS, ssh, and Podman's socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_env_docker import tunnel
from agent_env_docker.provider import DockerProvider, DockerSandbox

from agent_env_core.errors import SandboxError
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.testing.checks.base import eventually

pytestmark = pytest.mark.docker
BASE = "python:3.11-slim"
SERVER = ("python3", "-m", "http.server", "8000")
SOCKET = "/var/run/docker.sock"


async def commands_work(box: DockerSandbox) -> None:
    big = os.urandom(1 << 20)
    fed, empty, unread, printed = await asyncio.gather(
        box.exec(["cat"], stdin=big),
        box.exec(["cat"]),
        box.exec(["echo", "on"], stdin=big),
        box.exec(["sh", "-c", "head -c 3000000 /dev/zero; exit 7"]),
    )
    assert (fed.exit_code, fed.stdout == big) == (0, True)
    assert (empty.exit_code, empty.stdout) == (0, b"")
    assert (unread.exit_code, unread.stdout) == (0, b"on\n")
    assert (printed.exit_code, len(printed.stdout)) == (7, 3_000_000)


async def answers(url: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return (await client.get(url)).status_code == 200
        except httpx.TransportError:
            return False


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """One certificate for all: its own authority, the server's, and the client's."""
    folder = tmp_path_factory.mktemp("certificates")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", "key.pem", "-out", "cert.pem"], cwd=folder, check=True)
    shutil.copy(folder / "cert.pem", folder / "ca.pem")
    return folder


async def test_an_engine_by_tls(certificates, monkeypatch, make, label):
    """Neither half of such a connection can be closed, and other authorities that are named don't count."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    context.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    async def relay(reader, writer):
        back, forth = await asyncio.open_unix_connection(SOCKET)

        async def pump(source, target):
            try:
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
            except OSError:
                pass
            finally:
                target.close()

        await asyncio.gather(pump(reader, forth), pump(back, writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")
    remote = DockerProvider()
    try:
        image = await remote.prepare(Image(ref=BASE))
        box = await remote.create(SandboxSpec(image=image, ttl=120, labels=label))
        await commands_work(box)
        assert (await box.exec(["sh", "-c", "ls -A /tmp"])).stdout == b"", "what was fed has left nothing"
        call = asyncio.create_task(box.exec(["sh", "-c", "echo on >/on; sleep 1010"], stdin=b"x"))
        while (await box.exec(["test", "-e", "/on"])).exit_code:
            pass
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert b"1010" not in (await box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"])).stdout
        assert await remote.kill(box.id)
    finally:
        await remote.aclose()
        server.close()


# -- ssh


@pytest.fixture
def box(tmp_path: Path, monkeypatch) -> Iterator[str]:
    """``DOCKER_HOST`` of a machine "box": an ``sshd`` of this one that no port leads to."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
    if sshd is None or os.geteuid() != 0:
        pytest.skip("needs root and sshd (apt install openssh-server)")
    Path("/run/sshd").mkdir(exist_ok=True)
    for key in ("host", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key)], check=True)
    server = f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/id.pub\nStrictModes no\nUsePAM no\n"
    (tmp_path / "sshd_config").write_text(server + "PermitRootLogin yes\n")
    client = f"IdentityFile {tmp_path}/id\nUserKnownHostsFile {tmp_path}/known\nStrictHostKeyChecking accept-new\n"
    (tmp_path / "ssh_config").write_text(client + f"User root\nProxyCommand {sshd} -i -f {tmp_path}/sshd_config\n")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ssh"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh_config "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    host = f"ssh://box{SOCKET}"
    monkeypatch.setenv("DOCKER_HOST", host)
    yield host
    tunnel.of(host).close()


@pytest.mark.long
async def test_an_engine_by_ssh_with_ports_and_a_connection_that_breaks(make, label, box):
    remote = DockerProvider()
    try:
        image = await remote.prepare(Image(ref=BASE))
        made = await remote.create(SandboxSpec(image=image, ttl=120, labels=label, command=SERVER, ports=(8000,)))
        await commands_work(made)
        endpoint = await made.endpoint(8000)
        assert endpoint.url.startswith("http://127.0.0.1:")
        assert await (await remote.attach(made.id)).endpoint(8000) == endpoint
        await eventually(lambda: answers(endpoint.url), 30, "the server answers")
        done = await asyncio.gather(*(made.exec(["sh", "-c", f"sleep 1; echo {i}"]) for i in range(24)))
        assert [one.stdout for one in done] == [b"%d\n" % i for i in range(24)], "more than sshd takes sessions"
        process = tunnel.of(box)._process
        process.kill()
        process.wait()
        for _ in range(100):  # connections that were kept open are found to be dead one by one
            try:
                assert (await made.exec(["echo", "again"])).stdout == b"again\n"
                break
            except SandboxError:
                continue
        else:
            raise AssertionError("the connection did not come back")
        await eventually(lambda: answers(endpoint.url), 30, "the port is forwarded again")
        assert await remote.kill(made.id)
        assert not await answers(endpoint.url), "the forward ends with the sandbox"
    finally:
        await remote.aclose()


# -- Podman


@pytest.fixture
def podman(tmp_path: Path, monkeypatch) -> Iterator[None]:
    """A Podman of its own, with the base image, that ``DOCKER_HOST`` names."""
    if shutil.which("podman") is None or os.geteuid() != 0:
        pytest.skip("needs root and Podman (apt install podman slirp4netns catatonit)")
    config = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
    if shutil.which("runc"):  # crun takes no hybrid control groups
        config += 'runtime = "runc"\n'
    config += '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\nlog_driver = "k8s-file"\n'
    (tmp_path / "containers.conf").write_text(config)
    monkeypatch.setenv("CONTAINERS_CONF", str(tmp_path / "containers.conf"))
    archive, door = tmp_path / "base.tar", tmp_path / "podman.sock"
    subprocess.run(["docker", "save", "--output", str(archive), BASE], check=True)
    own = ["podman", "--root", f"{tmp_path}/root", "--runroot", f"{tmp_path}/run", "--tmpdir", f"{tmp_path}/tmp"]
    subprocess.run([*own, "load", "--quiet", "--input", str(archive)], check=True)
    with subprocess.Popen([*own, "system", "service", "--time=0", f"unix://{door}"]) as service:
        try:
            deadline = time.monotonic() + 30
            while not door.exists():
                assert service.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            monkeypatch.setenv("DOCKER_HOST", f"unix://{door}")
            yield
        finally:
            service.terminate()
    subprocess.run([*own, "rmi", "--all", "--force"], check=False, capture_output=True)
    subprocess.run(["umount", "-q", f"{tmp_path}/root/overlay"], check=False)


@pytest.mark.long
async def test_podman(podman, label):
    remote = DockerProvider()
    try:
        image = await remote.prepare(Image(ref=BASE))
        served = await remote.create(SandboxSpec(image=image, ttl=120, labels=label, command=SERVER, ports=(8000,)))
        other = await remote.create(SandboxSpec(image=image, ttl=120, labels=label))
        await commands_work(other)
        url = (await served.endpoint(8000)).url
        await eventually(lambda: answers(url), 30, "the server answers")
        reach = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)"
        for place, port in (("10.0.2.100", "8000"), ("10.0.2.2", url.rpartition(":")[2]), ("127.0.0.1", "8000")):
            done = await other.exec(["python3", "-c", reach, place, port])
            assert done.exit_code == 1, (place, port)
        for name in ("a\\b", "a[1]", "what?", "new\nline"):
            await other.write(f"/srv/{name}", name.encode())
            assert await other.read(f"/srv/{name}") == name.encode()
        assert any(await asyncio.gather(*(remote.kill(served.id) for _ in range(4))))  # more than one may say so here
        assert not await remote.kill(served.id)
        assert await remote.kill(other.id)
    finally:
        async for info in remote.list(label):
            await remote.kill(info.id)
        await remote.aclose()

"""Sandboxes reach the world, and not each other."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import httpx
import pytest
from agent_env_docker import network
from agent_env_docker.provider import DockerProvider

from agent_env_core.errors import ConfigError, Unavailable
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.testing.checks.base import eventually

SERVER = ("python3", "-m", "http.server", "8000")
CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()
except OSError as exc:
    sys.exit(str(exc))
"""


@pytest.mark.docker
async def test_no_sandbox_reaches_anothers_port(make, engine):
    served, other = await asyncio.gather(make(command=SERVER, ports=(8000,)), make())
    endpoint = await served.endpoint(8000)

    async def answers():
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(endpoint.url)).status_code == 200
            except httpx.TransportError:
                return False

    await eventually(answers, 30, "the server answers")
    info = engine.api.inspect_container(served.id)
    addresses = info["NetworkSettings"]["Networks"][network.NETWORK]
    reach = ["python3", "-c", CONNECT]
    assert (await served.exec([*reach, addresses["IPAddress"], "8000"])).exit_code == 0, "it reaches itself"
    published = endpoint.url.rpartition(":")[2]
    for host, port in (
        (addresses["IPAddress"], "8000"),
        (info["Name"].lstrip("/"), "8000"),
        (addresses["Gateway"], published),
        ("127.0.0.1", published),
    ):
        assert (await other.exec([*reach, host, port])).exit_code == 1, (host, port)


@pytest.mark.docker
async def test_a_pruned_network_comes_back(make, provider, engine, monkeypatch, base, label):
    """Another name, so that nobody else's sandboxes are on it."""
    monkeypatch.setattr(network, "NETWORK", f"agent-env-test-{id(make)}")
    own = DockerProvider(provider.settings)
    spec = SandboxSpec(image=base, ttl=60, labels=label)
    try:
        await own.kill((await own.create(spec)).id)
        engine.api.remove_network(network.NETWORK)
        box = await own.create(spec)
        assert list(engine.api.inspect_container(box.id)["NetworkSettings"]["Networks"]) == [network.NETWORK]
        await own.kill(box.id)
        assert network.remove_unused(engine.api)
        assert not network.remove_unused(engine.api)
    finally:
        for found in engine.api.networks(names=[network.NETWORK]):
            engine.api.remove_network(found["Id"])
        await own.aclose()


@pytest.mark.docker
async def test_an_engine_by_tcp_whose_connections_break(make, monkeypatch, engine, base, label):
    """What a restart of the engine looks like from here: every open connection breaks, and new ones work again."""
    streams, starts = set(), asyncio.Event()

    async def relay(reader, writer):
        back, forth = await asyncio.open_unix_connection("/var/run/docker.sock")
        streams.update((writer, forth))

        async def pump(source, target):
            try:
                while data := await source.read(1 << 16):
                    if re.match(rb"POST \S+/exec/\w+/start", data):
                        starts.set()
                    target.write(data)
                    await target.drain()
                target.write_eof()  # the other way goes on: a command's input ends before its output
            except OSError:
                target.transport.abort()

        await asyncio.gather(pump(reader, forth), pump(back, writer))
        for stream in (forth, writer):
            stream.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    remote = DockerProvider()
    try:
        box = await remote.create(SandboxSpec(image=base, ttl=60, labels=label, ports=(8000,)))
        assert (await box.exec(["echo", "by tcp"])).stdout == b"by tcp\n"
        assert (await box.endpoint(8000)).url.startswith("http://127.0.0.1:")
        starts.clear()
        call = asyncio.create_task(box.exec(["sleep", "60"], timeout=30))
        await starts.wait()
        for stream in list(streams):
            stream.transport.abort()
        with pytest.raises(Unavailable):
            await call
        for _ in range(100):  # connections that were kept open are found to be dead one by one
            try:
                assert (await box.exec(["echo", "again"])).stdout == b"again\n"
                break
            except Unavailable:
                continue
        else:
            raise AssertionError("the engine did not come back")
        assert await remote.kill(box.id)
    finally:
        server.close()
        for stream in streams:
            stream.close()
        await remote.aclose()


# -- without an engine


class Engine:
    """As much of a client as the network needs."""

    base_url, timeout = "http://engine", 10

    def __init__(self, networks, refuses="", name="Engine", host=None):
        self.made, self._refuses, self._name, self._host = list(networks), refuses, name, host or {}

    def get(self, url, timeout):
        import requests

        assert url == "http://engine/v4.0.0/libpod/info"
        response = requests.Response()
        response.status_code, response._content = 200, json.dumps({"host": self._host}).encode()
        return response

    def version(self, *, api_version):
        return {"Components": [{"Name": self._name}]}

    def networks(self, names):
        return [network for network in self.made if any(name in network["Name"] for name in names)]

    def create_network(self, name, *, options, labels, **_):
        from docker.errors import APIError

        if self._refuses:
            raise APIError("refused", explanation=self._refuses)
        self.made.append({"Name": name, "Options": options, "Labels": labels})

    def info(self):
        return {"BridgeNfIptables": False}


@pytest.fixture(autouse=True)
def _own_locks(tmp_path, monkeypatch, request):
    if not request.node.get_closest_marker("docker"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_somebody_elses_network_is_not_used():
    for theirs in ({}, {"Labels": {network.NETWORK_LABEL: "1"}, "Options": {}}):
        with pytest.raises(ConfigError, match="docker network rm agent-env"):
            network.ensure(Engine([{"Name": network.NETWORK, **theirs}]))
    similar = Engine([{"Name": "not-agent-env"}])
    assert network.ensure(similar) == network.ensure(similar) == network.NETWORK
    assert len(similar.made) == 2


def test_an_engine_that_cant_keep_them_apart_is_said_to(caplog):
    assert network.ensure(Engine([], refuses="unsupported bridge network option")) is None
    assert network.ensure(Engine([], name="Podman Engine", host=_podman())) is None
    assert network.ensure(Engine([])) == network.NETWORK
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 3
    assert all("reach each other's ports" in line for line in said)


def _podman(*programs, rootless=False):
    found = {name: {"executable": f"/usr/bin/{name}" if name in programs else ""} for name in ("slirp4netns", "pasta")}
    return {"security": {"rootless": rootless}} | found


@pytest.mark.parametrize(
    ("host", "mode"),
    [
        (_podman("slirp4netns", "pasta"), "slirp4netns"),
        (_podman("pasta"), None),  # which refuses to work for root
        (_podman("pasta", rootless=True), "pasta"),
        ({"security": {"rootless": True}}, None),
    ],
)
def test_on_podman_each_sandbox_has_a_network_stack_of_its_own(host, mode, caplog):
    assert network.ensure(Engine([], name="Podman Engine", host=host)) == mode
    assert ("install slirp4netns" in caplog.text) is (mode is None)

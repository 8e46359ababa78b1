"""Answers in which engines differ, from an engine that is made up."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
import threading

import pytest
import requests
from agent_env_docker import execs, files, prereqs, provider, removal

from agent_env_core.errors import Gone, Unavailable, Unsupported
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.sandbox.leases import PROVIDER_LABEL

ID = "0123456789ab"


class Engine:
    """As much of a client as removing and reading take.

    Args:
        removals: What each call to remove a container raises; None removes it.
        podman: Whether paths are taken for patterns, in which ``\\`` escapes, and ``*`` stands for nothing at all.
        content: The one file.
        info: What it says of itself, or what asking raises.
    """

    base_url, api_version, timeout = "http://engine", "1.41", 10

    def __init__(self, removals=(), podman=False, content=("/none", b""), info=None):
        self._removals, self._podman, self._content, self._info = list(removals), podman, content, info
        self.asked = []

    def info(self):
        if isinstance(self._info, Exception):
            raise self._info
        return self._info

    def close(self):
        self.asked.append("close")

    def inspect_container(self, id):
        state = {"Running": True, "Status": "running"}
        ports = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "49153"}], "9000/tcp": None}
        config = {"Labels": {PROVIDER_LABEL: "docker"}}
        return {"Id": ID, "Name": "/x", "State": state, "Config": config, "NetworkSettings": {"Ports": ports}}

    def remove_container(self, id, *, v, force):
        self.asked.append("remove")
        if (error := self._removals.pop(0)) is not None:
            raise error

    def head(self, url, *, params, timeout):
        return self._answer(params["path"])

    def get(self, url, *, params, timeout, stream):
        return self._answer(params["path"])

    def _answer(self, path):
        self.asked.append(path)
        response = requests.Response()
        response.url = f"http://engine/archive?path={path}"
        name, data = self._content
        if self._podman:
            response.headers["Libpod-API-Version"] = "5.8.6"
            for special in "\\?[]":
                name = name.replace(special, f"\\{special}")
        response.status_code = 200 if path == name else 404
        status = {"name": "x", "mode": 0o644, "linkTarget": path if self._podman else ""}
        encoded = base64.b64encode(json.dumps(status).encode()).decode()
        response.headers["X-Docker-Container-Path-Stat"] = encoded
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            entry = tarfile.TarInfo("x")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        response.raw = io.BytesIO(archive.getvalue())
        return response


def _in_progress():
    from docker.errors import APIError

    return APIError("conflict", explanation=f"removal of container {ID} is already in progress")


def test_a_removal_that_another_call_gave_up_is_taken_over():
    engine = Engine([_in_progress(), _in_progress(), None])
    assert removal.remove(engine, ID)


def test_a_sandbox_that_podman_lost_in_between_is_gone():
    from docker.errors import APIError

    engine = Engine([APIError("500", explanation=f"no container with ID {ID} found in database: no such container")])
    assert not removal.remove(engine, ID)


def test_a_forward_ends_before_the_engine_may_give_its_port_to_another():
    engine = Engine([None])

    class Through:
        def release(self, *remotes):
            engine.asked.append(remotes)

    assert removal.remove(engine, ID, Through())
    assert engine.asked == [(49153,), "remove"]


def test_a_removal_by_another_call_that_never_ends_is_said(monkeypatch):
    monkeypatch.setattr(removal, "PATIENCE", 0.0)
    with pytest.raises(Unavailable, match="removed by another call, which does not end"):
        removal.remove(Engine([_in_progress()] * 1000), ID)


@pytest.mark.parametrize("path", ["/srv/a\\b", "/srv/a[1]", "/srv/what?", "/d[a-z]\\/f", "/srv/plain"])
@pytest.mark.parametrize("podman", [False, True])
def test_a_path_is_a_name_and_no_pattern(path, podman):
    assert files.read(Engine(podman=podman, content=(path, b"data")), ID, path) == b"data"
    with pytest.raises(FileNotFoundError):
        files.read(Engine(podman=podman), ID, path)


def test_a_usual_path_is_asked_for_twice_and_no_more():
    engine = Engine(podman=True, content=("/srv/plain", b""))
    files.read(engine, ID, "/srv/plain")
    assert engine.asked == ["/srv/plain"] * 2, "what it is, and its content"


def test_what_podman_cannot_name_is_refused():
    assert files.read(Engine(content=("/srv/*", b"1")), ID, "/srv/*") == b"1"
    with pytest.raises(PermissionError, match="use exec"):
        files.read(Engine(podman=True, content=("/srv/*", b"1")), ID, "/srv/*")


def test_a_file_that_an_engine_which_restarts_breaks_off_is_not_taken_for_all_of_it():
    engine = Engine(content=("/srv/big", bytes(4096)))
    whole = engine._answer

    def cut(path):
        response = whole(path)
        response.raw = io.BytesIO(response.raw.getvalue()[:2048])
        return response

    engine._answer = cut
    with pytest.raises(Unavailable, match="reading /srv/big failed"):
        files.read(engine, ID, "/srv/big")


def test_a_command_that_the_engine_has_no_room_for_has_no_result():
    command = execs.Command(ID, ["true"], {}, None, b"", 1 << 20)
    command._take(1, bytearray(b"OCI runtime exec failed: open /run/x: no space left on device\r\n"))
    with pytest.raises(Unavailable, match="could not be started: OCI runtime exec failed"):
        command._not_started(Engine())


def test_what_an_engine_says_of_a_command_while_its_sandbox_ends_is_no_result():
    """Its files go first: then the engine says that there are none, as it does of a command that isn't there."""

    class Ending(Engine):
        def inspect_container(self, id):
            from docker.errors import NotFound

            raise NotFound("no such container")

    command = execs.Command(ID, ["true"], {}, None, b"", 1 << 20)
    command._take(1, bytearray(b"OCI runtime exec failed: open /proc/self/cgroup: no such file or directory\r\n"))
    with pytest.raises(Gone, match="it was removed"):
        command._not_started(Ending())


ROOTLESS = {"MemoryLimit": False, "SwapLimit": False, "CpuCfsQuota": False, "PidsLimit": False}


@pytest.mark.parametrize(
    ("flags", "claims", "says"),
    [
        (ROOTLESS, set(), "does not limit the memory, swap, cores, processes of sandboxes; an engine with root keeps"),
        ({**ROOTLESS, "MemoryLimit": True}, {"memory_mb"}, "does not limit the swap, cores, processes"),
        ({"MemoryLimit": True, "CPUCfsQuota": True}, {"cpu", "memory_mb"}, "limits memory, swap, cores, processes"),
    ],
)
async def test_what_an_engine_does_not_limit_is_not_claimed_and_refused(monkeypatch, flags, claims, says):
    monkeypatch.setattr(prereqs, "connect", lambda **how: Engine(info={"ServerVersion": "20.10", **flags}))
    box = provider.DockerProvider()
    assert box.capabilities.limits == {"cpu", "memory_mb"}  # it wasn't asked yet
    assert box.explain().startswith("the engine at ")
    for field in {"cpu", "memory_mb"} - claims:  # the first create asks, before it makes anything
        with pytest.raises(Unsupported, match=f"docker: {field}=64 can't be enforced by this provider here"):
            await provider.DockerProvider().create(SandboxSpec(image="x", ttl=1, **{field: 64}))
    await box._engine.call(lambda client: None)
    assert box.capabilities.limits == claims
    assert box.explain().startswith("Docker 20.10 at ")
    assert says in box.explain()
    await box.aclose()


async def test_what_an_engine_does_not_limit_is_logged_when_it_is_reached(monkeypatch, caplog):
    monkeypatch.setattr(prereqs, "connect", lambda **how: Engine(info=ROOTLESS))
    box = provider.DockerProvider()
    await box._engine.call(lambda client: None)
    await box._engine.call(lambda client: None)
    assert caplog.text.count("docker: this engine does not limit the memory, swap, cores, processes") == 1
    await box.aclose()


async def test_an_engine_that_answers_nothing_about_itself_is_asked_again_by_the_next_call(monkeypatch):
    engines = [Engine(info=ConnectionResetError("the engine restarts")), Engine(info=ROOTLESS)]
    monkeypatch.setattr(prereqs, "connect", lambda **how: engines[0])
    box = provider.DockerProvider()
    with pytest.raises(Unavailable, match="the engine restarts"):
        await box._engine.call(lambda client: None)
    assert engines.pop(0).asked == ["close"]
    await box._engine.call(lambda client: None)
    assert not box.capabilities.limits
    await box.aclose()


async def test_what_answers_about_itself_like_no_engine_is_none(monkeypatch):
    engine = Engine(info=["a list"])
    monkeypatch.setattr(prereqs, "connect", lambda **how: engine)
    box = provider.DockerProvider()
    with pytest.raises(Unavailable, match=r"docker: the Docker engine at .* can't be used"):
        await box._engine.call(lambda client: None)
    assert engine.asked == ["close"]
    await box.aclose()


async def test_an_engine_that_lists_nothing_for_ever_keeps_nobody_from_closing(monkeypatch):
    """One of whose containers is stuck does so, while it tells its version at once."""
    listing, may_answer = threading.Event(), threading.Event()

    class Stuck(Engine):
        def containers(self, **asked):
            listing.set()
            may_answer.wait(60)
            return []

    monkeypatch.setattr(prereqs, "connect", lambda **how: Stuck(info={}))
    box = provider.DockerProvider()
    try:
        call = asyncio.ensure_future(anext(box.list({}), None))
        await asyncio.to_thread(listing.wait, 30)
        call.cancel()
        await asyncio.wait({call})
        await asyncio.wait_for(box.aclose(), 30)
        assert call.cancelled()
    finally:
        may_answer.set()


async def test_a_provider_that_is_closed_while_it_reaches_for_the_engine_keeps_no_connection(monkeypatch):
    engine, reaching, may_answer = Engine(info={}), threading.Event(), threading.Event()

    def connect(**how):
        reaching.set()
        may_answer.wait(30)
        return engine

    monkeypatch.setattr(prereqs, "connect", connect)
    box = provider.DockerProvider()
    call = asyncio.create_task(box._engine.call(lambda client: None))
    await asyncio.to_thread(reaching.wait, 30)
    await box.aclose()
    may_answer.set()
    with pytest.raises(Unavailable, match="the provider was closed"):
        await call
    assert engine.asked == ["close"]

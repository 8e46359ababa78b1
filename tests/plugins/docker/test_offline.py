"""What needs no engine: settings, error mapping, build contexts, and saying why there is no engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from agent_env_docker import context as context_module
from agent_env_docker import prereqs
from agent_env_docker.context import Context
from agent_env_docker.failure import plain, translate
from agent_env_docker.provider import DockerProvider
from agent_env_docker.settings import Settings

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, Unavailable, Unsupported
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Image, KnowsImageCommand, SandboxProvider, SandboxSpec
from agent_env_core.sandbox.probe import look

# -- settings


def test_the_plugin_is_found_by_its_name():
    provider = plugins().sandbox_provider("docker")({"memory_mb": 512})
    assert isinstance(provider, DockerProvider)
    assert isinstance(provider, SandboxProvider)
    assert isinstance(provider, KnowsImageCommand)
    assert provider.settings == Settings(memory_mb=512)


def test_settings_read_text_as_a_command_line_gives_it():
    assert Settings.read("docker", {"cpus": "1.5", "pids": "64", "bytecode": "false"}) == Settings(
        cpus=1.5, pids=64, bytecode=False
    )


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ({"memory": 1}, "no setting 'memory'; known: memory_mb"),
        ({"pids": "many"}, "pids='many': .*integer"),
        ({"memory_mb": 0}, "memory_mb=0: .*greater than or equal to 1"),
        ({"cpus": -1}, "cpus=-1: .*greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_refused(config, part):
    with pytest.raises(ConfigError, match=part):
        Settings.read("docker", config)


def test_importing_the_plugin_does_not_import_the_sdk():
    code = "import agent_env_docker.plugin, agent_env_docker.provider, agent_env_docker.prereqs, sys; "
    code += "sys.exit(any(m.split('.')[0] in ('docker', 'requests') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- errors


def _api_error(status: int, text: str) -> Exception:
    import requests
    from docker.errors import APIError, create_api_error_from_http_exception

    response = requests.Response()
    response.status_code = status
    response._content = b'{"message": "' + text.encode() + b'"}'
    try:
        create_api_error_from_http_exception(requests.HTTPError(response=response))
    except APIError as exc:
        return exc
    raise AssertionError


@pytest.mark.parametrize(
    ("status", "text", "error", "part"),
    [
        (404, "No such image: x:1", ImageError, "x:1"),
        (404, "No such container: abc", Gone, ""),
        (409, "Container abc is not running", Gone, ""),
        (409, "container is marked for removal and cannot be started", Gone, ""),
        (400, "invalid mount", Unsupported, ""),
        (403, "authorization denied", ConfigError, ""),
        (500, "write /x: no space left on device", ConfigError, "agent-env gc --images --yes"),
        (500, "all predefined address pools have been fully subnetted", Busy, "docker network prune"),
        (500, "could not find an available, non-overlapping IPv4 address pool", Busy, "default-address-pools"),
        (403, "no available IPv4 addresses on this network's address pools: agent-env (0)", Busy, "MAX_RUNNING"),
        (500, "adding interface veth1 to bridge br-2 failed: exchange full", Busy, "1,024 containers"),
        (500, "Bind for 127.0.0.1:80 failed: port is already allocated", Busy, ""),
        (500, "listen tcp4 127.0.0.1:49153: bind: address already in use", Busy, ""),
        (500, "fork/exec: resource temporarily unavailable", Busy, ""),
        (500, "container-init binary not found on the host: stat /x/catatonit", ConfigError, "apt install catatonit"),
        (500, "toomanyrequests: you have reached your pull rate limit", Busy, "log in"),
        (500, "something new", Unavailable, "something new"),
    ],
)
def test_what_the_engine_says_becomes_one_of_the_six_errors(status, text, error, part):
    made = translate(_api_error(status, text), "starting a sandbox")
    assert type(made) is error
    assert str(made).startswith("docker: starting a sandbox failed: ")
    assert part in str(made)


def test_a_broken_connection_leaves_the_effect_unknown():
    import requests

    assert type(translate(requests.exceptions.ReadTimeout("60 s"), "x")) is Unavailable
    assert type(translate(ConnectionResetError("reset"), "x")) is Unavailable


def test_output_is_shown_without_colours():
    assert plain("\x1b[91mtwo\x1b[0m\n\x07é") == "two\né"


# -- build contexts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "My Env"
    (root / "sub").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "sub" / "tool.sh").write_text("x")
    (root / "link").symlink_to("sub/tool.sh")
    return root


def digest(root: Path, dockerfile: str = "Dockerfile") -> str:
    return Context.read(root, dockerfile).digest()


def test_the_digest_covers_content_names_and_the_executable_bit(folder: Path):
    seen = {digest(folder)}
    (folder / "sub" / "tool.sh").chmod(0o755)
    seen.add(digest(folder))
    (folder / "sub" / "tool.sh").write_text("y")
    seen.add(digest(folder))
    (folder / "sub" / "tool.sh").rename(folder / "sub" / "tool")
    seen.add(digest(folder))
    (folder / "link").unlink()
    seen.add(digest(folder))
    (folder / "Dockerfile.two").write_text("FROM scratch\n")
    seen.add(digest(folder))
    seen.add(digest(folder, "Dockerfile.two"))
    assert len(seen) == 7


def test_the_digest_leaves_out_what_differs_between_checkouts(folder: Path, tmp_path: Path):
    before = digest(folder)
    (folder / "sub" / "tool.sh").chmod(0o600)
    os.utime(folder / "sub" / "tool.sh", (1, 1))
    (folder / "sub").chmod(0o700)
    moved = folder.rename(tmp_path / "elsewhere")
    assert digest(moved) == before


def test_dockerignore_is_honoured(folder: Path):
    (folder / ".dockerignore").write_text("# comment\n**/*.log\nsub\n!sub/tool.sh\n")
    before = digest(folder)
    (folder / "x.log").write_text("noise")
    (folder / "sub" / "noise").write_text("noise")
    assert digest(folder) == before
    (folder / "sub" / "tool.sh").write_text("other")
    assert digest(folder) != before


def test_what_is_sent_is_what_was_hashed(folder: Path):
    context = Context.read(folder, "Dockerfile")
    with context.packed() as (name, _):
        assert name == context.digest()
    assert context.slug == "my-env"


@pytest.mark.parametrize(
    ("dockerfile", "part"), [("Nope", "there is no Dockerfile"), ("../Dockerfile", "is outside its context")]
)
def test_a_dockerfile_that_cannot_be_used_is_named(folder: Path, dockerfile, part):
    with pytest.raises(ImageError, match=part):
        Context.read(folder, dockerfile)


def test_a_context_that_cannot_be_read_is_named(folder: Path, monkeypatch):
    def broken(*_):
        raise PermissionError(13, "Permission denied", "secret")

    monkeypatch.setattr(context_module.Context, "_add", broken)
    with pytest.raises(ImageError, match=r"can't be read.*secret"):
        digest(folder)


def test_a_full_disk_of_temporary_files_is_no_fault_of_the_context(folder: Path, monkeypatch):
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(context_module.tempfile, "TemporaryFile", lambda **more: full)
        with (
            pytest.raises(ConfigError, match="No space left on device; free some space at"),
            Context.read(folder, "Dockerfile").packed(),
        ):
            pass


# -- no engine


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch) -> Path:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return path


def test_no_socket_is_said_in_one_line_with_the_alternatives(nowhere: Path):
    problem = look("docker").problem
    assert problem.startswith(f"no Docker engine is here: the socket unix://{nowhere} does not exist; start it")
    assert "--sandbox process" in problem
    assert "DOCKER_HOST" in problem
    assert "\n" not in problem


async def test_the_first_call_says_so_too(nowhere: Path):
    provider = DockerProvider()
    with pytest.raises(ConfigError, match=r"docker: no Docker engine .*--sandbox process"):
        await provider.prepare(Image(ref="x"))
    with pytest.raises(ConfigError):
        await provider.create(SandboxSpec(image="x", ttl=1))
    await provider.aclose()


def test_another_engine_that_is_here_is_pointed_at(nowhere: Path, tmp_path: Path):
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    assert f"export DOCKER_HOST=unix://{tmp_path}/podman/podman.sock" in look("docker").problem


def test_a_refused_connection_is_told_from_a_missing_socket(nowhere: Path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(nowhere))  # bound, and nobody listens
    assert "refused" in look("docker").problem


def test_an_engine_that_never_answers_does_not_hold_up_the_doctor(nowhere: Path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(nowhere))
        server.listen(8)
        # In a process of its own, which has to end too.
        ask = "from agent_env_core.sandbox.probe import look; print(look('docker', seconds=0.5).problem)"
        said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
        assert said.stdout.startswith(f"no answer within 0.5 s (the engine at unix://{nowhere}); see whether it runs")


def test_permission_denied_names_the_group():
    found = prereqs.explain(PermissionError(13, "Permission denied"))
    assert "usermod -aG docker" in found.fix


@pytest.mark.parametrize(
    ("host", "machine"),
    [
        ("unix:///var/run/docker.sock", None),
        ("tcp://127.0.0.1:2375", None),
        ("tcp://localhost:2375", None),
        ("tcp://build-box:2376", "build-box"),
        ("ssh://me@build-box", "build-box"),
        ("tcp://[::1", None),
    ],
)
def test_the_engines_machine_is_read_from_docker_host(monkeypatch, host, machine):
    monkeypatch.setenv("DOCKER_HOST", host)
    assert prereqs.engine_machine() == machine
    assert DockerProvider().capabilities.remote is (machine is not None)


@pytest.mark.parametrize(
    "text",
    [
        "SSLError(1, '[SSL: X] certificate verify failed: self-signed certificate (_ssl.c:1006)')",
        "Path to a certificate and key files must be provided through the client_cert param.",
        '400 Client Error: Bad Request ("Client sent an HTTP request to an HTTPS server.")',
    ],
)
def test_what_is_wrong_with_certificates_names_the_variables(text):
    found = prereqs.explain(RuntimeError(text))
    assert "DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH" in found.fix
    assert "_ssl.c" not in found.reason


def test_ssh_that_asks_or_fails_is_said_in_one_line(tmp_path: Path, monkeypatch):
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\necho 'me@build-box: Permission denied (publickey).' >&2\nexit 255\n")
    program.chmod(0o755)
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@build-box")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    problem = look("docker", seconds=30).problem
    assert problem.startswith(
        "ssh://me@build-box can't be reached: me@build-box: Permission denied (publickey); let `ssh` in there without"
    )
    monkeypatch.setenv("PATH", "/none")
    assert "apt install openssh-client" in look("docker", seconds=30).problem


async def test_a_call_for_which_there_is_no_thread_is_one_of_the_six_errors(nowhere: Path, monkeypatch):
    def exhausted(thread):
        raise RuntimeError("can't start new thread")

    provider = DockerProvider()
    box = provider._handle("0123456789ab")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", exhausted)
        for call in (provider.kill("0123456789ab"), box.exec(["true"])):
            with pytest.raises(Unavailable, match="no thread can be had"):
                await call
    await provider.aclose()
    with pytest.raises(Unavailable, match="the provider was closed"):
        await provider.kill("0123456789ab")


async def test_ports_of_a_remote_engine_are_refused_before_anything_is_created(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://build-box:2376")
    with pytest.raises(Unsupported, match=r"DOCKER_HOST=ssh://build-box, which forwards them, or publish"):
        await DockerProvider().create(SandboxSpec(image="x", ttl=1, ports=(80,)))


def test_the_docker_context_is_used_without_docker_host(tmp_path: Path, monkeypatch):
    from hashlib import sha256

    meta = tmp_path / "contexts" / "meta" / sha256(b"mine").hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(
        '{"Name": "mine", "Metadata": {}, "Endpoints": {"docker": {"Host": "unix:///x.sock", "SkipTLSVerify": false}}}'
    )
    (tmp_path / "config.json").write_text('{"currentContext": "mine"}')
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert prereqs.engine_host() == "unix:///x.sock"

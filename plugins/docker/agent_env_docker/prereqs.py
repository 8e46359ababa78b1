"""The way to the engine, and if there is none, why not and what to do: in one line each."""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_env_docker import tunnel
from agent_env_docker.tunnel import Tunnel

if TYPE_CHECKING:
    from docker import APIClient

DEFAULT_HOST = "unix:///var/run/docker.sock"
OTHERWISE = 'or leave Docker out: `sandbox="process"`, or `--sandbox process`'


@dataclass(frozen=True)
class Diagnosis:
    """Why no sandboxes can be made here.

    Attributes:
        reason: What is wrong.
        fix: What to do about it.
    """

    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.reason.rstrip('.')}; {self.fix}"


def engine() -> dict[str, Any]:
    """Where the engine is: ``base_url`` and ``tls`` for the SDK, from DOCKER_HOST or else from the Docker context."""
    from docker import ContextAPI
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    if os.environ.get("DOCKER_HOST"):
        return dict(kwargs_from_env())
    try:
        context = ContextAPI.get_context(os.environ.get("DOCKER_CONTEXT"))
    except (DockerException, OSError, ValueError):  # a context file that can't be read is no reason to stop
        return {}
    if context is None or context.Name == "default" or not context.Host:
        return {}
    tls = context.TLSConfig
    return {"base_url": context.Host} | ({"tls": tls} if tls else {})


def engine_host() -> str:
    """The engine's address as ``DOCKER_HOST`` would say it."""
    try:
        return str(os.environ.get("DOCKER_HOST") or engine().get("base_url") or DEFAULT_HOST)
    except Exception:  # e.g. certificates that are missing: `connect` will say so
        return os.environ.get("DOCKER_HOST") or DEFAULT_HOST


def set_up() -> bool:
    """Whether anything here speaks of Docker: a stopped engine is to be told, one that nobody ever had is not."""
    host = engine_host()
    return host != DEFAULT_HOST or Path(host.removeprefix("unix://")).exists() or shutil.which("docker") is not None


def engine_machine() -> str | None:
    """Name of the machine the engine runs on; None where it is this one."""
    try:
        parts = urlsplit(engine_host())
    except ValueError:  # no address at all: `connect` will say so
        return None
    name = parts.hostname if parts.scheme in ("tcp", "http", "https", "ssh") else None
    return None if name in (None, "localhost", "127.0.0.1", "::1") else name


def engine_tunnel() -> Tunnel | None:
    """What leads to an engine that is named by ssh; None for any other."""
    host = engine_host()
    return tunnel.of(host) if host.startswith("ssh://") else None


def connect(*, timeout: int, connections: int) -> APIClient:
    """A client of the engine, of the newest API version both sides know; it has answered once when this returns.

    Args:
        timeout: Seconds of silence after which a call fails.
        connections: How many connections are kept open for the next calls.

    Raises:
        Exception: Whatever the SDK raises; :func:`explain` says what it means.
    """
    where = engine()
    if (through := engine_tunnel()) is not None:
        where = {"base_url": through.engine(timeout)}
    _knock(where.get("base_url") or DEFAULT_HOST, timeout)
    client = _client_class()(version="auto", timeout=timeout, max_pool_size=connections, **where)
    _share_pool(client)
    return client


def _client_class() -> type[APIClient]:
    from docker import APIClient

    class Client(APIClient):
        def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
            """The engine's own authority counts, which ``requests`` passes over where REQUESTS_CA_BUNDLE is set."""
            verify = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, verify, cert)

    return Client


def _share_pool(client: APIClient) -> None:
    """Gives all requests of a client one connection pool.

    The SDK's own transport (socket file) keys its pools by the whole URL and keeps only so many; with more calls
    than that under way in threads it closes a pool that another thread is using ("Pool is closed").
    """
    from docker.transport.basehttpadapter import BaseHTTPAdapter

    adapter: Any = client.get_adapter(client.base_url)
    if not isinstance(adapter, BaseHTTPAdapter):  # TCP: requests' own, which keys by host
        return
    keyed = adapter.get_connection
    setattr(adapter, "get_connection", lambda url, proxies=None: keyed(client.base_url, proxies))  # noqa: B010 -- it stands in for a method


def _knock(host: str, timeout: int) -> None:
    """Connects to a local socket and hangs up: its plain ``OSError`` says more than what the SDK wraps it in."""
    if host.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(timeout)
            door.connect(host.removeprefix("unix://"))


def explain(exc: BaseException) -> Diagnosis:
    """Why :func:`connect` failed."""
    host = engine_host()
    text = " ".join(str(exc).split())
    lowered = text.lower()
    if isinstance(exc, tunnel.TunnelError):
        return Diagnosis(f"{host} can't be reached: {text}", f"let `ssh` in there without a question, {OTHERWISE}")
    if isinstance(exc, PermissionError):
        return Diagnosis(
            f"the Docker engine at {host} may not be used by this user",
            f"join its group (`sudo usermod -aG docker $USER`, then log in again), {OTHERWISE}",
        )
    if "certificate" in lowered or "https server" in lowered:
        why = re.search(r"certificate verify failed: [^('\"]+", text)
        return Diagnosis(
            f"the Docker engine at {host} can't be used: {why[0].strip() if why else text}",
            "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the folder of its ca.pem and your cert.pem and key.pem",
        )
    if "timed out" in lowered or "timeout" in lowered:
        return Diagnosis(f"the Docker engine at {host} did not answer in time", f"restart it, {OTHERWISE}")
    if isinstance(exc, FileNotFoundError):
        return Diagnosis(f"no Docker engine is here: the socket {host} does not exist", _start())
    if isinstance(exc, ConnectionRefusedError) or "connection refused" in lowered:
        return Diagnosis(f"no Docker engine answers at {host}: the connection was refused", _start())
    return Diagnosis(f"the Docker engine at {host} can't be used: {text}", f"check DOCKER_HOST, {OTHERWISE}")


def _start() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "/run")
    for path in (Path(runtime, "docker.sock"), Path(runtime, "podman/podman.sock"), Path("/run/podman/podman.sock")):
        if path.exists():
            return f"use the engine that is here (`export DOCKER_HOST=unix://{path}`), {OTHERWISE}"
    return f"start it, or name another one (Podman's too) in DOCKER_HOST, {OTHERWISE}"

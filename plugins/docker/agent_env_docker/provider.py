"""The provider ``docker``: one container for each sandbox."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import Gone, ImageError, Unavailable, Unsupported, describe
from agent_env_core.sandbox.contract import (
    Capabilities,
    Endpoint,
    ExecResult,
    Image,
    SandboxInfo,
    SandboxSpec,
    Unused,
    refuse_unsupported,
)
from agent_env_core.sandbox.leases import EXPIRES_LABEL, PROVIDER_LABEL, expires_label
from agent_env_docker import execs, files, images, limits, network, prereqs, removal, tunnel
from agent_env_docker.engine import Engine
from agent_env_docker.failure import alive, inside, last_words, short, translated, words
from agent_env_docker.settings import Settings

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

KEPT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""What root may still do in a sandbox: what installing packages and running servers takes, and no more."""

_KEEP_ALIVE = ("sleep", "2147483647")
_NAME = re.compile(r"^/?agent-env-[0-9a-f]{12}(?:-until-(\d+))?$")
_PATIENCE = 10.0
_UNKNOWN = "?"
"""Stands for the shared network until the engine was asked for it: no network can be called that."""


class DockerProvider:
    """Makes sandboxes of containers.

    Args:
        settings: Defaults and limits.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._engine = Engine(self.settings.engine_timeout)
        self._shared_network: str | None = _UNKNOWN
        self._stays_alive: set[str] = set()  # images in which the keep-alive command was seen to work

    @property
    def name(self) -> str:
        """``docker``."""
        return "docker"

    @property
    def capabilities(self) -> Capabilities:
        """What it can do with the engine at hand; before the first call reaches that, all limits are claimed."""
        known = self._engine.known
        return Capabilities(
            isolation="container",
            remote=self._machine is not None,
            build=True,
            refs=True,
            limits=limits.claimed(known.unkept if known else ()),
            network=frozenset({"open", "none"}),
            extend=True,
        )

    def explain(self) -> str:
        """See :class:`agent_env_core.sandbox.contract.Explains`."""
        return str(self._engine.known or f"the engine at {prereqs.engine_host()}")

    @cached_property
    def _machine(self) -> str | None:
        return prereqs.engine_machine()

    @property
    def _on_loopback(self) -> bool:
        return self.settings.publish.startswith("127.")

    @cached_property
    def _tunnel(self) -> tunnel.Tunnel | None:
        """What leads to ports on the loopback of the engine's machine; None where they are reached without."""
        return prereqs.engine_tunnel() if self._on_loopback and not self.settings.host else None

    async def prepare(self, image: Image) -> str:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.prepare`."""
        if image.context is not None:
            return await images.build(self._engine, image.context, image.dockerfile, self.settings)
        return await images.pull(self._engine, image.ref or "")

    async def image_command(self, prepared: str) -> tuple[str, ...]:
        """See :class:`agent_env_core.sandbox.contract.KnowsImageCommand`."""
        return await images.command(self._engine, prepared)

    async def unused(self) -> Sequence[Unused]:
        """See :class:`agent_env_core.sandbox.contract.Prunable`: images that agent-env built and nothing uses."""
        return await images.unused(self._engine)

    async def prune(self, id: str) -> bool:
        """See :class:`agent_env_core.sandbox.contract.Prunable`."""
        return await images.prune(self._engine, id)

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.create`."""
        refuse_unsupported(self.name, self.capabilities, spec)
        self._refuse(spec)
        sandbox_id = await self._engine.call(lambda client: self._start(client, spec), undo=removal.discard)
        if not spec.command:
            self._stays_alive.add(spec.image)
        return self._handle(sandbox_id)

    def _refuse(self, spec: SandboxSpec) -> None:
        if spec.ports and spec.network == "none":
            raise Unsupported(f"docker: ports={spec.ports} can't be reached with network='none'; leave one of them out")
        if spec.ports and self._machine is not None and self._on_loopback and self._tunnel is None:
            raise Unsupported(
                f"docker: the engine is on {self._machine}, where ports are opened on {self.settings.publish} only; "
                f"set DOCKER_HOST=ssh://{self._machine}, which forwards them, or publish, to an address that you reach"
            )

    def _start(self, client: APIClient, spec: SandboxSpec) -> str:
        """Creates and starts a container; leaves none behind when it raises."""
        refuse_unsupported(self.name, self.capabilities, spec)  # again: what it keeps the engine may have said just now
        name = f"agent-env-{uuid.uuid4().hex[:12]}"
        with translated(f"starting a sandbox of {spec.image}"):
            try:
                sandbox_id = self._create_and_start(client, name, spec)
                if not spec.command and spec.image not in self._stays_alive:
                    _require_keep_alive(client, sandbox_id, spec.image)
            except BaseException:
                # By name: where the engine's answer is what failed, its id was never heard of.
                removal.discard(client, name)
                raise
            return sandbox_id

    def _create_and_start(self, client: APIClient, name: str, spec: SandboxSpec) -> str:
        for last in (False, True):
            shared = "none" if spec.network == "none" else self._network(client)
            created = client.create_container(spec.image, name=name, **self._config(client, spec, shared))
            sandbox_id = str(created["Id"])
            try:
                client.start(sandbox_id)
            except Exception as exc:
                if last or f"network {shared} not found" not in words(exc):
                    raise
                # Somebody pruned networks since ours was last seen.
                client.remove_container(sandbox_id, v=True, force=True)
                self._shared_network = _UNKNOWN
            else:
                return sandbox_id
        raise AssertionError("the last round returns or raises")

    def _network(self, client: APIClient) -> str | None:
        """The network that sandboxes share; None for the engine's default."""
        if self._shared_network is _UNKNOWN:
            self._shared_network = network.ensure(client)
        return self._shared_network

    def _config(self, client: APIClient, spec: SandboxSpec, shared: str | None) -> dict[str, Any]:
        from docker.types import LogConfig

        memory = (spec.memory_mb or self.settings.memory_mb) << 20
        cpus = spec.cpu or self.settings.cpus
        host_config = client.create_host_config(
            init=True,  # reaps zombies, and passes signals on
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=int(cpus * 1e9) or None,
            pids_limit=self.settings.pids,
            cap_drop=["ALL"],
            cap_add=list(KEPT_CAPABILITIES),
            security_opt=["no-new-privileges"],
            network_mode=shared,
            storage_opt={"size": f"{self.settings.disk_mb}M"} if self.settings.disk_mb else None,
            port_bindings=dict.fromkeys(spec.ports, (self.settings.publish, None)),
            log_config=LogConfig(type="json-file", config={"max-size": "4m", "max-file": "1"}),
        )
        return {
            # As the entry point, so that the image's own neither runs nor swallows it.
            "entrypoint": list(spec.command or _KEEP_ALIVE),
            "environment": {**spec.env, **{name: str(port) for name, port in spec.port_env.items()}},
            "working_dir": spec.workdir,
            "ports": list(spec.ports),
            "labels": {PROVIDER_LABEL: self.name, EXPIRES_LABEL: expires_label(spec.ttl), **spec.labels},
            "healthcheck": {"test": ["NONE"]},  # an image's own would run, and cost, for nobody
            "use_config_proxy": False,  # nothing of the host's environment enters
            "host_config": host_config,
        }

    async def attach(self, id: str) -> DockerSandbox:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.attach`."""

        def find(client: APIClient) -> str:
            with translated(f"looking for the sandbox {short(id)}"):
                info = alive(client, id)
                if PROVIDER_LABEL not in (info["Config"].get("Labels") or {}):
                    raise Gone(f"docker: the container {short(id)} is no sandbox of agent-env")
                return str(info["Id"])

        return self._handle(await self._engine.call(find))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.list`.

        Containers whose main process ended, or that were never started, are listed too: they hold disk until they are
        killed, and what is not listed is never reaped.
        """
        wanted = [f"{key}={value}" for key, value in {PROVIDER_LABEL: self.name, **labels}.items()]

        def ask(client: APIClient) -> tuple[SandboxInfo, ...]:
            with translated("listing sandboxes"):
                found = client.containers(all=True, filters={"label": wanted})
                return tuple(_info(entry) for entry in found if entry["State"] != "removing")

        for info in await self._engine.thread(ask):  # not awaited on closing: a stuck engine hangs here
            yield info

    async def kill(self, id: str) -> bool:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.kill`."""
        return await self._engine.call(lambda client: removal.remove(client, id, self._tunnel))

    async def aclose(self) -> None:
        """Lets go of the connections."""
        await self._engine.aclose()

    def _handle(self, sandbox_id: str) -> DockerSandbox:
        return DockerSandbox(sandbox_id, self._engine, self.settings, self._machine, self._tunnel)


class DockerSandbox:
    """One container. Made by :class:`DockerProvider`."""

    def __init__(
        self, sandbox_id: str, engine: Engine, settings: Settings, machine: str | None, through: tunnel.Tunnel | None
    ) -> None:
        self._id = sandbox_id
        self._engine = engine
        self._settings = settings
        self._tunnel = through
        self._host = settings.host or machine or settings.publish.replace("0.0.0.0", "127.0.0.1")

    @property
    def id(self) -> str:
        """The container's id."""
        return self._id

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.exec`."""
        limit = self._settings.output_mb << 20
        return await execs.run(
            self._engine, self._id, argv, env=env, cwd=cwd, stdin=stdin, timeout=timeout, limit=limit
        )

    async def read(self, path: str) -> bytes:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.read`."""
        return await self._engine.call(lambda client: files.read(client, self._id, path))

    async def write(self, path: str, data: bytes) -> None:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.write`."""
        await self._engine.call(lambda client: files.write(client, self._id, path, data))

    async def endpoint(self, port: int) -> Endpoint:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.endpoint`."""

        def look(client: APIClient) -> Endpoint:
            published = _published(client, self._id, port)
            if self._tunnel is None:
                return Endpoint(f"http://{self._host}:{published}")
            with translated(f"forwarding port {port} of the sandbox {short(self._id)}"):
                return Endpoint(f"http://127.0.0.1:{self._tunnel.port(published)}")

        return await self._engine.call(look)

    async def extend(self, ttl: float) -> None:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.extend`.

        Labels can't be changed, a name can: it holds the renewed expiry, where every machine that uses the engine sees
        it and nothing inside the sandbox can reach it.
        """
        if not 0 < ttl < float("inf"):
            raise Unsupported(f"docker: ttl={ttl:g} must be above 0 and finite")

        def rename(client: APIClient) -> None:
            with inside(client, self._id, "renewing the lease"):
                current = str(alive(client, self._id)["Name"]).lstrip("/")
                renewed = f"{current.partition('-until-')[0]}-until-{expires_label(ttl)}"
                if renewed != current:
                    client.rename(self._id, renewed)

        await self._engine.call(rename)


def _info(entry: dict[str, Any]) -> SandboxInfo:
    labels = dict(entry["Labels"] or {})
    for name in entry["Names"] or ():
        if (match := _NAME.match(name)) and match[1]:
            labels[EXPIRES_LABEL] = match[1]
    return SandboxInfo(entry["Id"], labels)


def _published(client: APIClient, sandbox_id: str, port: int) -> int:
    """The port of the engine's machine that leads to ``port``."""
    deadline = time.monotonic() + _PATIENCE
    pause = 0.005
    with inside(client, sandbox_id, f"looking for port {port}"):
        while True:
            info = alive(client, sandbox_id)
            if f"{port}/tcp" not in (info["HostConfig"].get("PortBindings") or {}):
                raise Unsupported(f"docker: port {port} was not named in the ports of the sandbox {short(sandbox_id)}")
            # Right after the start the engine may not show it yet.
            for binding in (info["NetworkSettings"].get("Ports") or {}).get(f"{port}/tcp") or ():
                if binding.get("HostPort"):
                    return int(binding["HostPort"])
            if time.monotonic() > deadline:
                raise Unavailable(f"docker: the engine does not say where port {port} of {short(sandbox_id)} is")
            time.sleep(pause)
            pause = min(0.2, pause * 2)


def _require_keep_alive(client: APIClient, sandbox_id: str, image: str) -> None:
    """Makes sure that a sandbox without a command stays: the init starts even where the program is missing."""
    try:
        execs.require_alive(client, sandbox_id)
    except Gone as gone:
        words = last_words(client, sandbox_id) or describe(gone)
        raise ImageError(
            f"docker: the image {image} needs `sleep` and `sh` to be kept alive without a command: {words}"
        ) from gone

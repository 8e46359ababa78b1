"""The process provider: prepares images, creates sandboxes, and finds those of other processes again."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from agent_env_core.errors import Busy, ConfigError, Gone, SandboxError, Unavailable, Unsupported
from agent_env_core.sandbox.contract import Capabilities, Image, SandboxInfo, SandboxSpec, refuse_unsupported
from agent_env_core.sandbox.leases import EXPIRES_LABEL, expires_label
from agent_env_process.build import build
from agent_env_process.environment import MARK, loopback, main_environment
from agent_env_process.files import copy_tree
from agent_env_process.images import ImageCache, PreparedImage
from agent_env_process.plan import read_plan
from agent_env_process.ports import HeldPorts
from agent_env_process.procs import end_all
from agent_env_process.running import Running
from agent_env_process.sandbox import ProcessSandbox
from agent_env_process.state import Record, State

NAME = "process"

_CAPACITY = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})

CAPABILITIES = Capabilities(
    isolation="none",
    build=True,
    network=frozenset({"open"}),
    private_files=False,
    extend=True,
)


class ProcessProvider:
    """Sandboxes that are plain processes of this machine.

    Args:
        config: ``cache_dir`` and ``state_dir``, both optional paths; see the plugin's README.

    Raises:
        ValueError: ``config`` has a setting that doesn't exist.
    """

    def __init__(self, config: Mapping[str, object] | None = None) -> None:
        settings = dict(config or {})
        cache = settings.pop("cache_dir", None) or _user_folder("XDG_CACHE_HOME", ".cache")
        state = settings.pop("state_dir", None) or _user_folder("XDG_STATE_HOME", ".local/state")
        if settings:
            raise ValueError(f"process: unknown settings {sorted(settings)}; it knows cache_dir and state_dir")
        self._cache = ImageCache(Path(str(cache)))
        self._state = State(Path(str(state)))
        self._running: dict[str, Running] = {}

    @property
    def name(self) -> str:
        """The name a user types."""
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        """What it can do: little isolation, and it says so."""
        return CAPABILITIES

    # -- images

    async def prepare(self, image: Image) -> str:
        """Makes a Python environment and a tree of files from a simple Dockerfile, or finds them in the cache.

        Raises:
            Unsupported: ``image`` is a registry reference.
            ImageError: The Dockerfile asks for more than this provider can do, or a step failed.
        """
        if image.context is None:
            raise Unsupported(
                f"process: the image {image.ref!r} comes from a registry, and this provider only builds simple Python "
                "Dockerfiles; the docker provider can use it (sandbox='docker')"
            )
        plan = await asyncio.to_thread(read_plan, image.context, image.dockerfile)
        found = self._cache.find(plan.ref)
        return (found or await build(self._cache, plan)).ref

    async def image_command(self, prepared: str) -> tuple[str, ...]:
        """The start command of the Dockerfile; empty where it has none."""
        return self._cache.get(prepared).command

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> ProcessSandbox:
        """Copies the image's files to a private folder and starts the main process there."""
        refuse_unsupported(NAME, CAPABILITIES, spec)
        unnamed = set(spec.ports) - set(spec.port_env.values())
        if unnamed:
            raise Unsupported(
                f"{NAME}: ports {sorted(unnamed)} need a variable in port_env, since sandboxes share this machine's "
                "network and each is given a port of its own"
            )
        image = self._cache.get(spec.image)
        sandbox_id = f"p{uuid.uuid4().hex[:15]}"
        ports = HeldPorts(spec.ports)
        try:
            furnish = asyncio.create_task(asyncio.to_thread(self._furnish, sandbox_id, spec, image, ports.numbers))
            try:
                record = await asyncio.shield(furnish)
            except asyncio.CancelledError:
                await asyncio.wait({furnish})  # a thread can't be stopped; what it makes is removed after it
                raise
            running = Running(record, self._state, ports)
            self._running[sandbox_id] = running
            if spec.command:
                paths = image.paths(self._state.root(sandbox_id))
                await running.start_main([loopback(part) for part in paths.command(spec.command)])
        except BaseException as exc:
            await asyncio.shield(self._discard(sandbox_id, ports))
            if isinstance(exc, OSError):
                raise _creation_error(exc) from exc
            raise
        return ProcessSandbox(sandbox_id, self._state, image, self._running)

    def _furnish(self, sandbox_id: str, spec: SandboxSpec, image: PreparedImage, ports: Mapping[int, int]) -> Record:
        """Everything on disk: the file that makes the sandbox known first, then its folder."""
        root = self._state.root(sandbox_id)
        paths = image.paths(root)
        record = Record(
            id=sandbox_id,
            labels={EXPIRES_LABEL: expires_label(spec.ttl), **spec.labels},
            image=spec.image,
            env=main_environment(sandbox_id, spec, image, paths, ports),
            workdir=str(paths.host(spec.workdir or image.workdir)),
            ports=dict(ports),
            has_main=bool(spec.command),
        )
        self._state.save(record)
        root.mkdir(parents=True, mode=0o700)
        copy_tree(image.tree, root, paths.text)
        for folder in (Path(record.workdir), Path(record.env["HOME"]), Path(record.env["TMPDIR"])):
            folder.mkdir(parents=True, exist_ok=True)
        return record

    async def _discard(self, sandbox_id: str, ports: HeldPorts) -> None:
        await self.kill(sandbox_id)
        ports.release()

    async def attach(self, id: str) -> ProcessSandbox:
        """A handle on a sandbox of any process of this machine and user."""
        record = self._state.load(id)
        if record is None:
            raise Gone(f"{NAME}: there is no sandbox {id}")
        sandbox = ProcessSandbox(id, self._state, self._cache.get(record.image), self._running)
        await sandbox.check()
        return sandbox

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Every sandbox of this machine and user that still holds a process or a folder."""
        wanted = labels.items()
        for record in await asyncio.to_thread(lambda: list(self._state.records())):
            if wanted <= record.labels.items():
                yield SandboxInfo(record.id, record.labels)

    async def kill(self, id: str) -> bool:
        """Ends all processes of a sandbox, whoever started them, then removes its folder."""
        running = self._running.get(id)
        if running is not None:
            running.mark_ended("it was killed")
        record = self._state.load(id)
        if record is None and running is None:
            return False
        leader = running.main if running is not None else record.main if record is not None else None
        resisting = await asyncio.to_thread(end_all, f"{MARK}={id}", leader)
        if resisting:
            raise Unavailable(f"{NAME}: processes {resisting} of sandbox {id} won't end")
        removed = await asyncio.to_thread(self._state.remove, id)
        if running is not None:
            running.close()
            self._running.pop(id, None)
        return removed

    async def aclose(self) -> None:
        """Lets go of what ended sandboxes held; running ones go on, and need their ports and pipes."""
        for sandbox_id, running in list(self._running.items()):
            if running.end is not None:
                running.close()
                del self._running[sandbox_id]


def _creation_error(exc: OSError) -> SandboxError:
    """What an error of the machine means for the one who asked; nothing was left by it."""
    if exc.errno in _CAPACITY:
        return Busy(f"{NAME}: this machine has no room for another sandbox: {exc}", retry_after=2.0)
    return ConfigError(f"{NAME}: a sandbox can't be made here: {exc}")


def _user_folder(variable: str, default: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / default) / "agent-env" / "process"

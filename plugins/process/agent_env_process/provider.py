"""The process provider: prepares images, creates sandboxes, and finds those of other processes again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from agent_env_core.errors import Gone, Unavailable, Unsupported, fix_for
from agent_env_core.sandbox.contract import Capabilities, Image, SandboxInfo, SandboxSpec, Unused, refuse_unsupported
from agent_env_core.sandbox.leases import EXPIRES_LABEL, expires_label
from agent_env_process import cgroups
from agent_env_process.build import build
from agent_env_process.cells import hold_command
from agent_env_process.environment import MARK, loopback, main_environment
from agent_env_process.failure import creation_error
from agent_env_process.files import copy_tree
from agent_env_process.images import ImageCache, PreparedImage
from agent_env_process.isolation import choose
from agent_env_process.mounts import accounts, visible
from agent_env_process.paths import absolute
from agent_env_process.plan import read_plan
from agent_env_process.ports import HeldPorts
from agent_env_process.procs import end_all, end_namespace
from agent_env_process.pruning import remove, tidy, unused
from agent_env_process.running import Running
from agent_env_process.sandbox import ProcessSandbox, view_of
from agent_env_process.settings import Settings
from agent_env_process.state import Record, State

NAME = "process"


class ProcessProvider:
    """Sandboxes that are plain processes of this machine.

    Args:
        config: See :class:`agent_env_process.settings.Settings`.

    Raises:
        ConfigError: A setting that doesn't exist, a value that it can't have, or an isolation that this machine doesn't
            allow.
    """

    def __init__(self, config: Mapping[str, object] | None = None) -> None:
        self.settings = Settings.read(NAME, config or {})
        self._isolation = choose(self.settings.isolation)
        self._groups = cgroups.choose()
        self._cache = ImageCache(self.settings.cache_dir)
        self._state = State(self.settings.state_dir)
        self._running: dict[str, Running] = {}

    @property
    def name(self) -> str:
        """The name a user types."""
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        """What it can do, which depends on the isolation and the control groups that this machine allows."""
        return replace(self._isolation.capabilities, limits=self._groups.claimed)

    def explain(self) -> str:
        """Which isolation and limits these are, for people; see :class:`~agent_env_core.sandbox.contract.Explains`."""
        return f"{self._isolation}; {self._groups}"

    # -- images

    async def prepare(self, image: Image) -> str:
        """Makes a Python environment and a tree of files from a simple Dockerfile, or finds them in the cache.

        Raises:
            Unsupported: ``image`` is a registry reference.
            ImageError: The Dockerfile asks for more than this provider can do, or a step failed.
            ConfigError: A folder of this provider can't be used: told here, before the first sandbox.
        """
        if image.context is None:
            raise Unsupported(
                f"process: the image {image.ref!r} comes from a registry, and this provider only builds simple Python "
                "Dockerfiles; the docker provider can use it (sandbox='docker')"
            )
        await asyncio.to_thread(self._state.make)
        plan = await asyncio.to_thread(read_plan, image.context, image.dockerfile)
        found = self._cache.find(plan.ref)
        if found is None:
            found = await build(self._cache, plan)
            await asyncio.to_thread(self._tidy)
        found.touch()
        return found.ref

    async def image_command(self, prepared: str) -> tuple[str, ...]:
        """The start command of the Dockerfile; empty where it has none."""
        return self._cache.get(prepared).command

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> ProcessSandbox:
        """Copies the image's files to a private folder and starts the main process there."""
        refuse_unsupported(NAME, self.capabilities, spec)
        unnamed = set(spec.ports) - set(spec.port_env.values())
        if unnamed:
            raise Unsupported(
                f"{NAME}: ports {sorted(unnamed)} need a variable in port_env, since sandboxes share this machine's "
                "network and each is given a port of its own"
            )
        if spec.ports and spec.network == "none":
            raise Unsupported(f"{NAME}: ports {list(spec.ports)} can't be reached with network='none'; leave one out")
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
            if record.private:
                record = await running.open_cell(self._hold(record, spec, image))
            if spec.command:
                view = view_of(record, self._state, image)
                await running.start_main([loopback(part) for part in spec.command], view)
        except BaseException as exc:
            await asyncio.shield(self._discard(sandbox_id, ports))
            if isinstance(exc, OSError):
                fix = fix_for(exc, "check the folder's rights, and this machine's memory")
                raise creation_error(exc, f"a sandbox can't be made in {self._state.folder}: {exc}; {fix}") from exc
            raise
        return ProcessSandbox(sandbox_id, self._state, image, self._running)

    def _furnish(self, sandbox_id: str, spec: SandboxSpec, image: PreparedImage, ports: Mapping[int, int]) -> Record:
        """Everything on disk: the file that makes the sandbox known first, then its folder."""
        root = self._state.root(sandbox_id)
        record = Record(
            id=sandbox_id,
            labels={EXPIRES_LABEL: expires_label(spec.ttl), **spec.labels},
            image=spec.image,
            ports=dict(ports),
            has_main=bool(spec.command),
            private=self._isolation.private,
            pids=self.settings.pids if self._isolation.counts_processes else 0,
            groups=self._groups.folders(sandbox_id),
        )
        view = view_of(record, self._state, image)
        workdir = spec.workdir or image.workdir
        where = absolute(workdir) if record.private else str(image.paths(root).host(workdir))
        record = replace(record, env=main_environment(sandbox_id, spec, image, view, ports), workdir=where)
        self._state.save(record)
        self._limit(sandbox_id, spec)
        root.mkdir(parents=True, mode=0o700)
        copy_tree(image.tree, root, view.text)
        for folder in (workdir, "/root", "/tmp"):  # noqa: S108 - the sandbox's own
            image.paths(root).host(folder).mkdir(parents=True, exist_ok=True)
        if record.private:
            accounts(root)
            (root / "tmp").chmod(0o1777)
        return record

    def _limit(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Makes a sandbox's control groups."""
        memory_mb, cpus = spec.memory_mb or self.settings.memory_mb, spec.cpu or self.settings.cpus
        try:
            self._groups.make(sandbox_id, memory_mb=memory_mb, cpus=cpus, pids=self.settings.pids)
        except OSError as exc:
            raise creation_error(exc, f"a sandbox's limits can't be set: {exc}") from exc

    def _hold(self, record: Record, spec: SandboxSpec, image: PreparedImage) -> list[str]:
        """The command that opens a sandbox's namespaces."""
        libraries = record.env.get("LD_LIBRARY_PATH", "").split(":")
        return hold_command(
            self._isolation.kind,
            self._state.root(record.id),
            visible(image, [path for path in libraries if path.startswith("/")]),
            user=self._isolation.user,
            net=spec.network == "none",
            groups=record.groups,
        )

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
        leaders = running.leaders if running is not None else ()
        if record is not None:
            leaders += (record.holder, record.main)
            await asyncio.to_thread(cgroups.hurry, record.groups)
        if record is not None and record.holder is not None:
            await asyncio.to_thread(end_namespace, record.holder)
        resisting = await asyncio.to_thread(end_all, f"{MARK}={id}", *leaders)
        if resisting:
            raise Unavailable(f"{NAME}: processes {resisting} of sandbox {id} won't end")
        if record is not None:
            await asyncio.to_thread(cgroups.remove, record.groups)
        removed = await asyncio.to_thread(self._state.remove, id)
        if running is not None:
            running.close()
            self._running.pop(id, None)
        return removed

    # -- the cache

    async def unused(self) -> Sequence[Unused]:
        """Images of no running sandbox of this machine, and Python environments that only those use."""
        return await asyncio.to_thread(lambda: unused(self._cache, self._in_use()))

    async def prune(self, id: str) -> bool:
        """Removes one of :meth:`unused`."""
        return await asyncio.to_thread(lambda: remove(self._cache, id, self._in_use))

    def _in_use(self) -> frozenset[str]:
        return frozenset(record.image for record in self._state.records())

    def _tidy(self) -> None:
        tidy(self._cache, self._in_use, days=self.settings.cache_days, gigabytes=self.settings.cache_gb)

    async def aclose(self) -> None:
        """Lets go of what ended sandboxes held; running ones go on, and need their ports and pipes."""
        for sandbox_id, running in list(self._running.items()):
            if running.end is not None:
                running.close()
                del self._running[sandbox_id]

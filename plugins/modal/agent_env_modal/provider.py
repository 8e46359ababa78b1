"""The provider ``modal``: one Modal sandbox for each sandbox."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from agent_env_core.errors import Gone, ImageError, SandboxError, Unavailable, describe
from agent_env_core.sandbox.contract import Capabilities, Image, SandboxInfo, SandboxSpec, refuse_unsupported
from agent_env_core.sandbox.leases import EXPIRES_LABEL, PROVIDER_LABEL, expires_label
from agent_env_modal.account import Account
from agent_env_modal.failure import translate, translated
from agent_env_modal.images import Images
from agent_env_modal.network import policy
from agent_env_modal.sandbox import PORTS_TAG, ModalSandbox
from agent_env_modal.settings import Settings

if TYPE_CHECKING:
    from modal.sandbox import Sandbox

logger = logging.getLogger("agent_env_modal")

NAME = "modal"

LONGEST_TTL = 24 * 3600.0
"""Seconds that Modal lets a sandbox live at most."""

_KEEP_ALIVE = ("sleep", "2147483647")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # the SDK takes ids of forms to come, so no more is asked of one
_AT_ONCE = 16
_END_SECONDS = 25.0


class ModalProvider:
    """Makes sandboxes on Modal.

    Args:
        settings: What can be set.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._account = Account(self.settings)
        self._images = Images(self.settings)
        self._handles: WeakSet[ModalSandbox] = WeakSet()
        self._behind: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        """``modal``."""
        return NAME

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(
            isolation="vm" if self.settings.runtime == "vm" else "container",
            remote=True,
            build=True,
            refs=True,
            gpu=True,
            limits=frozenset({"cpu", "memory_mb"}),
            network=frozenset({"open", "none", "allow"}),
            ttl_enforced=True,
            max_ttl=LONGEST_TTL,
            creates_per_second=self.settings.creates_per_second,
        )

    async def prepare(self, image: Image) -> str:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.prepare`."""
        return await self._images.prepare(await self._account.open(), image)

    # -- creating

    async def create(self, spec: SandboxSpec) -> ModalSandbox:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.create`."""
        refuse_unsupported(NAME, self.capabilities, spec)
        task = asyncio.create_task(self._create(spec))
        try:
            sandbox = await asyncio.shield(task)
        except asyncio.CancelledError:
            # The SDK's call goes on in a thread of its own: what it makes is ended after it.
            self._do_behind(self._discard(task))
            raise
        made = ModalSandbox(sandbox, self.settings, spec.ports)
        self._handles.add(made)
        return made

    async def _create(self, spec: SandboxSpec) -> Sandbox:
        import modal

        opened = await self._account.open()
        image = self._images.get(opened, spec.image)
        cpu, memory = spec.cpu or self.settings.cpu, spec.memory_mb or self.settings.memory_mb
        env: dict[str, str | None] = {**spec.env, **{name: str(port) for name, port in spec.port_env.items()}}
        tags = {PROVIDER_LABEL: NAME, EXPIRES_LABEL: expires_label(spec.ttl), **spec.labels}
        if spec.ports:
            tags[PORTS_TAG] = " ".join(map(str, spec.ports))
        try:
            return await modal.Sandbox.create.aio(
                *(spec.command or _KEEP_ALIVE),
                app=opened.app,
                client=opened.client,
                image=image,
                tags=tags,
                env=env,
                workdir=spec.workdir,
                timeout=math.ceil(spec.ttl),
                # Pairs of what is set aside and what is the most: a number alone would be no limit.
                cpu=(cpu, cpu) if cpu else None,
                memory=(memory, memory) if memory else None,
                gpu=spec.gpu,
                region=self.settings.regions,
                runtime=self.settings.runtime or None,
                encrypted_ports=spec.ports if self.settings.endpoints == "tunnel" else (),
                **policy(spec),
            )
        except modal.exception.NotFoundError as exc:
            raise ImageError(f"modal: there is no image {spec.image!r}: {describe(exc)}") from exc
        except Exception as exc:
            raise translate(exc, "creating a sandbox", self.settings.retry_after) from exc

    async def _discard(self, task: asyncio.Task[Sandbox]) -> None:
        """Ends what comes of a create that nobody waits for any more."""
        try:
            sandbox = await task
        except (SandboxError, asyncio.CancelledError):
            return  # nothing came of it
        try:
            await self.kill(sandbox.object_id)
        except SandboxError as exc:  # its time to live ends it, or the reaper
            logger.warning("the sandbox %s of a cancelled create is still there: %s", sandbox.object_id, describe(exc))

    def _do_behind(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    # -- finding and ending

    async def attach(self, id: str) -> ModalSandbox:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.attach`."""
        found = await self._find(id)
        if found is None:
            raise Gone(f"modal: there is no sandbox {id!r} that runs")
        attached = ModalSandbox(found, self.settings)
        self._handles.add(attached)
        return attached

    async def _find(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox of that id where it runs."""
        import modal

        opened = await self._account.open()
        if not _ID.fullmatch(sandbox_id):
            return None
        try:
            found = await modal.Sandbox.from_id.aio(sandbox_id, client=opened.client)
        except modal.exception.NotFoundError:
            return None
        except Exception as exc:
            if type(exc) is modal.exception.InvalidError:  # Modal takes it for nobody's id; a conflict is one as well
                return None
            raise translate(exc, f"looking for the sandbox {sandbox_id}") from exc
        return None if found.returncode is not None else found

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.list`; what has ended leaves nothing on Modal."""
        import modal

        opened = await self._account.open()
        asked_for = {PROVIDER_LABEL: NAME, **labels}  # the app may hold others' as well
        with translated("listing sandboxes"):
            asked = modal.Sandbox.list.aio(app_id=opened.app_id, tags=asked_for, client=opened.client)
            found = [sandbox async for sandbox in asked]
        room = asyncio.Semaphore(_AT_ONCE)  # Modal tells of tags one by one
        for info in await asyncio.gather(*(_info(sandbox, room) for sandbox in found)):
            if info is not None:
                yield info

    async def kill(self, id: str) -> bool:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.kill`."""
        found = await self._find(id)
        if found is None:
            self._mark_killed(id)
            return False
        try:
            async with asyncio.timeout(_END_SECONDS):
                with translated(f"ending the sandbox {id}"):
                    await found.terminate.aio(wait=True)
        except TimeoutError as exc:
            raise Unavailable(f"modal: the sandbox {id} was told to end and hasn't within {_END_SECONDS:g} s") from exc
        self._mark_killed(id)
        return True

    def _mark_killed(self, sandbox_id: str) -> None:
        """Ends what is under way in it, which Modal may let wait for long."""
        for handle in self._handles:
            if handle.id == sandbox_id:
                handle.mark_ended("it was killed")

    async def aclose(self) -> None:
        """Waits for what is ended behind, and lets go of the account."""
        await asyncio.gather(*self._behind, return_exceptions=True)
        await self._account.aclose()


async def _info(sandbox: Sandbox, room: asyncio.Semaphore) -> SandboxInfo | None:
    from modal.exception import NotFoundError

    async with room:
        with translated("reading a sandbox's tags"):
            try:
                return SandboxInfo(sandbox.object_id, await sandbox.get_tags.aio())
            except NotFoundError:  # it ended since it was listed
                return None

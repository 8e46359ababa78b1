"""The handle on one sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env_core.errors import Gone, SandboxError, Unavailable, Unsupported, describe
from agent_env_core.sandbox.contract import Endpoint, ExecResult
from agent_env_modal.execs import Command
from agent_env_modal.failure import translate, translated
from agent_env_modal.settings import Settings

if TYPE_CHECKING:
    from modal.sandbox import Sandbox

T = TypeVar("T")

logger = logging.getLogger("agent_env_modal")

PORTS_TAG = "agent-env.ports"
"""Holds the ports of a sandbox, for whoever attaches to it."""

_FIRST_LOOK, _LOOK = 3.0, 10.0
_ENDINGS = {124: "its time to live was over", 137: "it was killed"}


class ModalSandbox:
    """One sandbox. Made by :class:`~agent_env_modal.provider.ModalProvider`.

    Args:
        sandbox: The SDK's handle.
        settings: The provider's.
        ports: Its ports; None where they have to be asked for.
    """

    def __init__(self, sandbox: Sandbox, settings: Settings, ports: Sequence[int] | None = None) -> None:
        self._sandbox, self._settings, self._ports = sandbox, settings, ports
        self._id: str = sandbox.object_id
        self._ended = asyncio.Event()
        self._why = ""

    @property
    def id(self) -> str:
        """Modal's id of it."""
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
        if not argv:
            raise ValueError("modal: exec needs a command")
        limit = self._settings.output_mb << 20
        command = Command(self._sandbox, argv, env=env or {}, cwd=cwd, stdin=stdin, limit=limit)
        return await self._living(command.run(timeout), "running a command")

    async def read(self, path: str) -> bytes:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.read`."""
        return await self._living(self._sandbox.filesystem.read_bytes.aio(path), f"reading {path}")

    async def write(self, path: str, data: bytes) -> None:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.write`."""
        await self._living(self._sandbox.filesystem.write_bytes.aio(data, path), f"writing {path}")

    async def endpoint(self, port: int) -> Endpoint:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.endpoint`."""
        return await self._living(self._endpoint(port), f"asking for port {port}")

    async def _endpoint(self, port: int) -> Endpoint:
        await self._refuse_ended()
        if self._ports is None:
            tags = await self._sandbox.get_tags.aio()
            self._ports = [int(number) for number in tags.get(PORTS_TAG, "").split()]
        if port not in self._ports:
            raise Unsupported(f"modal: port {port} was not named in the ports of {self._id}: {list(self._ports)}")
        if self._settings.endpoints == "tunnel":
            tunnels = await self._sandbox.tunnels.aio()
            if port not in tunnels:
                raise Unavailable(f"modal: {self._id} has no tunnel to port {port}; it was made with other settings")
            return Endpoint(tunnels[port].url.rstrip("/"))
        given = await self._sandbox.create_connect_token.aio(port=port)
        return Endpoint(given.url.rstrip("/"), {"Authorization": f"Bearer {given.token}"})

    async def extend(self, ttl: float) -> None:
        """Always refuses: Modal fixes the time to live when it creates a sandbox."""
        raise Unsupported("modal: a sandbox's time to live can't be changed; ask for as much as is needed")

    # -- life and end

    def mark_ended(self, why: str) -> None:
        """Notes that it has ended, which ends every call that is under way."""
        if not self._ended.is_set():
            self._why = why
            self._ended.set()

    async def _refuse_ended(self) -> None:
        """Asks whether it still runs.

        Raises:
            Gone: It doesn't.
        """
        from modal.exception import NotFoundError

        if not self._ended.is_set():
            try:
                with translated(f"looking for the sandbox {self._id}"):
                    code = await self._sandbox.poll.aio()
            except SandboxError as exc:
                if not isinstance(exc.__cause__, NotFoundError):
                    raise
                self.mark_ended("Modal knows it no more")
            else:
                if code is not None:
                    self.mark_ended(_ENDINGS.get(code, f"its main process ended with exit code {code}"))
        if self._ended.is_set():
            raise Gone(f"modal: the sandbox {self._id} has ended: {self._why}")

    async def _living(self, work: Coroutine[Any, Any, T], doing: str) -> T:
        """Does something inside; where the sandbox ends meanwhile, that is the error.

        A call into a sandbox that has ended may hang for minutes, since the SDK hopes for it to start.
        """
        if self._ended.is_set():
            work.close()
            await self._refuse_ended()
        task, watch = asyncio.create_task(work), asyncio.create_task(self._until_ended())
        try:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await self._refuse_ended()
            return task.result()
        except Exception as exc:
            error = translate(exc, doing, self._settings.retry_after)
            if isinstance(error, SandboxError) and not isinstance(error, Gone | Unsupported):
                await self._refuse_ended_after(error)
            if error is exc:
                raise
            raise error from exc
        finally:
            for each in (task, watch):
                each.cancel()
            await asyncio.gather(task, watch, return_exceptions=True)

    async def _refuse_ended_after(self, error: SandboxError) -> None:
        try:
            await self._refuse_ended()
        except Gone as gone:
            raise gone from error
        except SandboxError as exc:  # nobody can say; what went wrong first is what is told
            logger.debug("modal: can't ask for %s: %s", self._id, describe(exc))

    async def _until_ended(self) -> None:
        pause = _FIRST_LOOK
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), pause)
                return
            with contextlib.suppress(SandboxError):
                await self._refuse_ended()
            pause = _LOOK

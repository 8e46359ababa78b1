"""Main processes. E2B's machines outlive theirs, so this side listens to each one, and ends its sandbox with it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_env_core.errors import Gone, SandboxError, describe
from agent_env_core.sandbox.commands import TOKEN_VARIABLE
from agent_env_e2b.commands import Stream
from agent_env_e2b.failure import translated
from agent_env_e2b.supervisor import Report, packed, run_line

if TYPE_CHECKING:
    from e2b import AsyncSandbox

logger = logging.getLogger("agent_env_e2b")

TAIL = 4000
"""Bytes of a main process's last output that are told when it ends."""

EVERYTHING = 1 << 60
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


class Main:
    """The main process of one sandbox.

    Args:
        sandbox: Where.
        command: Its argv.

    Attributes:
        ended: How it ended, in words; empty while it runs.
    """

    def __init__(self, sandbox: AsyncSandbox, command: tuple[str, ...]) -> None:
        self._sandbox, self._command = sandbox, command
        self._tail = bytearray()
        self._report = Report(self._keep)
        self._stream = Stream(sandbox, self._report, "following the main process")
        self._watching: asyncio.Task[None] | None = None
        self.ended = ""

    def _keep(self, kind: str, data: bytes) -> None:
        self._tail += data
        del self._tail[:-TAIL]

    async def start(self, user: str, env: Mapping[str, str], request_timeout: float) -> None:
        """Starts it, and listens to it from then on."""
        token = secrets.token_hex(12)
        line = run_line(token, self._command, limit=EVERYTHING)
        await self._stream.open(
            line, user=user, env={**packed("CALL", env), TOKEN_VARIABLE: token}, request_timeout=request_timeout
        )
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Waits for its end, then ends the sandbox."""
        pid, pause = self._stream.pid, FIRST_PAUSE
        while not self._report.over:
            try:
                await self._stream.over()
                break
            except Gone as exc:
                self.ended = str(exc)
                return
            except SandboxError as exc:
                logger.debug("%s: %s", self._sandbox.sandbox_id, describe(exc))
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
            await self._again(pid)
        self.ended = self._obituary()
        await self._end()

    async def _again(self, pid: int) -> None:
        """Listens again after a stream broke; a process that isn't there any more has ended unseen."""
        await self._stream.close()
        try:
            if not await self._stream.reopen(pid):
                self._report.code = -1  # nobody saw its code
        except SandboxError as exc:
            logger.debug("%s: %s", self._sandbox.sandbox_id, describe(exc))

    def _obituary(self) -> str:
        code = self._report.code
        how = "ended" if code is None or code < 0 else f"ended with exit code {code}"
        text = f"its main process ({' '.join(self._command)[:200]}) {how}"
        said = self._tail.decode(errors="replace").strip()
        return f"{text}; its last output:\n{said}" if said else text

    async def _end(self) -> None:
        try:
            with translated("ending a sandbox whose main process has ended"):
                await self._sandbox.kill()
        except SandboxError as exc:  # its time ends it then
            logger.warning("%s: %s", self._sandbox.sandbox_id, describe(exc))

    async def close(self) -> None:
        """Stops listening."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._stream.close()

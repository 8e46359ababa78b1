"""One sandbox of E2B: commands, files, ports, time."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agent_env_core.errors import Gone, Unsupported
from agent_env_core.sandbox.contract import Endpoint, ExecResult
from agent_env_e2b.commands import Command
from agent_env_e2b.failure import obituary, translated
from agent_env_e2b.mains import Main
from agent_env_e2b.settings import LONGEST, Settings

if TYPE_CHECKING:
    from e2b import AsyncSandbox

SANDBOX_URL = "E2B_SANDBOX_URL"
"""The SDK's variable for an installation whose sandboxes are all behind one address."""

SLOWEST_TRANSFER = 256 * 1024
"""Bytes in a second that a file is expected to travel with at least."""


class E2BSandbox:
    """A handle on one sandbox. Made by :class:`agent_env_e2b.provider.E2BProvider`."""

    def __init__(
        self, sandbox: AsyncSandbox, settings: Settings, user: str, ports: frozenset[int], main: Main | None = None
    ) -> None:
        self._sandbox, self._settings, self._user = sandbox, settings, user
        self._ports, self._main = ports, main

    @property
    def id(self) -> str:
        """E2B's id."""
        return str(self._sandbox.sandbox_id)

    def _require_main(self) -> None:
        if self._main is not None and self._main.ended:
            raise obituary(self.id, self._main.ended)

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
            raise ValueError("e2b: exec needs a command")
        self._require_main()
        command = Command(self._sandbox, self._user, self._settings.output_mb << 20, self._settings.request_timeout)
        try:
            return await command.run(argv, env or {}, cwd, stdin, timeout)
        except Gone:
            self._require_main()  # says more
            raise

    async def read(self, path: str) -> bytes:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.read`."""
        self._require_main()
        with translated(f"reading {path}"), _file_errors(path):
            pieces = await self._sandbox.files.read(path, format="stream", user=self._user)
            async with pieces:
                return b"".join([piece async for piece in pieces])

    async def write(self, path: str, data: bytes) -> None:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.write`."""
        self._require_main()
        seconds = self._settings.request_timeout + len(data) / SLOWEST_TRANSFER
        with translated(f"writing {path}"), _file_errors(path):
            await self._sandbox.files.write(
                path, bytes(data), user=self._user, use_octet_stream=True, request_timeout=seconds
            )

    async def endpoint(self, port: int) -> Endpoint:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.endpoint`."""
        self._require_main()
        with translated(f"looking for port {port}"):
            running = await self._sandbox.is_running()
        if not running:
            raise obituary(self.id, "it was ended, or its time was over")
        if port not in self._ports:
            raise Unsupported(f"e2b: port {port} was not named in the ports of the sandbox {self.id}")
        headers = {}
        if token := self._sandbox.traffic_access_token:
            headers["e2b-traffic-access-token"] = token
        if shared := os.environ.get(SANDBOX_URL):
            return Endpoint(shared.rstrip("/"), {**headers, "E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": str(port)})
        return Endpoint(f"https://{self._sandbox.get_host(port)}", headers)

    async def extend(self, ttl: float) -> None:
        """See :meth:`agent_env_core.sandbox.contract.Sandbox.extend`."""
        longest = LONGEST[self._settings.plan]
        if not 0 < ttl <= longest:
            raise Unsupported(
                f"e2b: ttl={ttl:g} must be above 0 and at most {longest:g} on the plan {self._settings.plan}"
            )
        self._require_main()
        with translated("extending a sandbox's time"):
            await self._sandbox.set_timeout(math.ceil(ttl))


class _file_errors:
    """Turns what the SDK raises about a path into the errors that local files have."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        if not isinstance(exc, Exception):
            return
        import e2b

        text = " ".join(str(exc).split())
        if isinstance(exc, e2b.FileNotFoundException):
            raise FileNotFoundError(text) from exc
        if isinstance(exc, e2b.InvalidArgumentException):
            if "director" in text.lower():
                raise IsADirectoryError(text) from exc
            raise PermissionError(f"{self._path}: {text}") from exc

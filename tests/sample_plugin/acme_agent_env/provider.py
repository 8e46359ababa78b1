"""``sandbox="audited"``: another provider's sandboxes, with a line in a file for each that starts and ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from agent_env_core import ConfigError, hookimpl
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Capabilities, Image, Sandbox, SandboxInfo, SandboxProvider, SandboxSpec


class AuditedProvider:
    """Wraps a provider. It can do what that one can, and keeps a record.

    Args:
        config: ``file`` is where the record goes (else the variable ``ACME_AUDIT_FILE``), ``of`` the provider that does
            the work (``process``); the rest is that provider's configuration.

    Raises:
        ConfigError: No file was named.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        rest = dict(config)
        file = rest.pop("file", None) or os.environ.get("ACME_AUDIT_FILE")
        if not file:
            raise ConfigError("audited: name the record's file in the setting file or in ACME_AUDIT_FILE")
        self._file = Path(file)
        self._inner: SandboxProvider = plugins().sandbox_provider(rest.pop("of", "process"))(rest)

    @property
    def name(self) -> str:
        """The name a user types."""
        return "audited"

    @property
    def capabilities(self) -> Capabilities:
        """What the wrapped provider can do."""
        return self._inner.capabilities

    async def prepare(self, image: Image) -> str:
        """Prepares an image."""
        return await self._inner.prepare(image)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Creates a sandbox, and records it."""
        sandbox = await self._inner.create(spec)
        self._record("created", sandbox.id)
        return sandbox

    async def attach(self, id: str) -> Sandbox:
        """A handle on a live sandbox."""
        return await self._inner.attach(id)

    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """The sandboxes with these labels."""
        return self._inner.list(labels)

    async def kill(self, id: str) -> bool:
        """Ends a sandbox, and records it if there was one."""
        there_was = await self._inner.kill(id)
        if there_was:
            self._record("killed", id)
        return there_was

    async def aclose(self) -> None:
        """Lets go of connections."""
        await self._inner.aclose()

    def _record(self, what: str, sandbox_id: str) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.time(), "what": what, "sandbox": sandbox_id}) + "\n")


@hookimpl
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers ``audited``."""
    register("audited", AuditedProvider)

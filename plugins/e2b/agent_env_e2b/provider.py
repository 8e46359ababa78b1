"""The provider ``e2b``: one micro-VM of E2B's cloud for each sandbox."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import ConfigError, Gone, NotSetUp, SandboxError, Unsupported, describe
from agent_env_core.sandbox.contract import Capabilities, Image, SandboxInfo, SandboxSpec, refuse_unsupported
from agent_env_core.sandbox.leases import EXPIRES_LABEL, PROVIDER_LABEL, expires_label
from agent_env_e2b import templates
from agent_env_e2b.failure import KEY, KEYS_PAGE, obituary, translated
from agent_env_e2b.mains import Main
from agent_env_e2b.sandbox import E2BSandbox
from agent_env_e2b.settings import CREATES, LONGEST, Settings
from agent_env_e2b.supervisor import WORKDIR_VARIABLE, packed

if TYPE_CHECKING:
    from e2b import AsyncSandbox

logger = logging.getLogger("agent_env_e2b")

PORTS_LABEL, USER_LABEL, TTL_LABEL = "agent-env.ports", "agent-env.user", "agent-env.ttl"

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{3,63}")
_PAGE = 100
_SLACK = 5.0
"""Seconds between the time asked for and the one E2B counts, before the time is taken to have been extended."""


class E2BProvider:
    """Makes sandboxes on E2B.

    Args:
        settings: Sizes and limits.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._mains: dict[str, Main] = {}
        self._undoing: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """``e2b``."""
        return "e2b"

    @property
    def capabilities(self) -> Capabilities:
        """What it can do on the account's plan."""
        return Capabilities(
            isolation="vm",
            remote=True,
            build=True,
            refs=True,
            network=frozenset({"open", "none", "allow"}),
            ttl_enforced=True,
            extend=True,
            max_ttl=LONGEST[self.settings.plan],
            creates_per_second=self.settings.creates_per_second or CREATES[self.settings.plan],
        )

    def _account(self, *, retries: int = 3) -> dict[str, Any]:
        """Where the SDK asks, and how often; the key it takes from the environment.

        Raises:
            ConfigError: There is none.
        """
        require_key()
        where = {"domain": self.settings.domain} if self.settings.domain else {}
        return {**where, "retries": retries, "request_timeout": self.settings.request_timeout}

    async def prepare(self, image: Image) -> str:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.prepare`."""
        return await templates.prepare(image, self.settings, self._account())

    # -- sandboxes

    async def create(self, spec: SandboxSpec) -> E2BSandbox:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.create`."""
        if spec.cpu is not None or spec.memory_mb is not None:
            raise Unsupported(
                "e2b: cpu and memory_mb belong to a template, not to a sandbox: leave them unset, and set those "
                f"of the provider (now {self.settings.cpu} and {self.settings.memory_mb})"
            )
        refuse_unsupported(self.name, self.capabilities, spec)
        template, user = templates.parts(spec.image)
        making = asyncio.create_task(self._make(template, spec, user))
        try:
            sandbox = await asyncio.shield(making)
        except asyncio.CancelledError:  # E2B goes on with it, so it's waited for behind, and undone
            self._undo(making)
            raise
        try:
            return await self._started(sandbox, spec, user)
        except BaseException:
            await asyncio.shield(self._undo(making))
            raise

    async def _make(self, template: str, spec: SandboxSpec, user: str) -> AsyncSandbox:
        from e2b import AsyncSandbox

        account = self._account(retries=0)  # the core waits for room, and looks for what got lost
        with translated(f"creating a sandbox of {template}", pause=self.settings.retry_after):
            return await AsyncSandbox.create(
                template,
                timeout=math.ceil(spec.ttl),
                metadata=_metadata(spec, user),
                envs=_variables(spec),
                allow_internet_access=spec.network != "none",
                network=_network(spec),
                lifecycle={"on_timeout": "kill"},
                **account,
            )

    def _undo(self, making: asyncio.Task[AsyncSandbox]) -> asyncio.Task[None]:
        """Ends what a create makes, once it has."""

        async def undo() -> None:
            try:
                sandbox = await making
            except SandboxError:
                return  # nothing came of it
            try:
                await self.kill(sandbox.sandbox_id)
            except SandboxError as exc:  # its time to live ends it, or the reaper
                told = "the sandbox %s of a create that was given up is still there: %s"
                logger.warning(told, sandbox.sandbox_id, describe(exc))

        task = asyncio.create_task(undo())
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)
        return task

    async def _started(self, sandbox: AsyncSandbox, spec: SandboxSpec, user: str) -> E2BSandbox:
        """Makes the working folder and starts the main process."""
        if spec.workdir is not None:
            with translated(f"making the folder {spec.workdir}"):
                await sandbox.files.make_dir(spec.workdir, user=user)
        main = None
        if spec.command:
            main = Main(sandbox, spec.command)
            await main.start(user, {}, self.settings.request_timeout)
            self._mains[sandbox.sandbox_id] = main
        return E2BSandbox(sandbox, self.settings, user, frozenset(spec.ports), main)

    async def attach(self, id: str) -> E2BSandbox:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.attach`."""
        if not _ID.fullmatch(id):
            raise Gone(f"e2b: {id!r} can't be the id of a sandbox")
        from e2b import AsyncSandbox, SandboxState

        with translated(f"looking for the sandbox {id}"):
            info = await AsyncSandbox.get_info(id, **self._account())
            if info.metadata.get(PROVIDER_LABEL) != self.name:
                raise Gone(f"e2b: {id} is no sandbox of agent-env")
            if info.state != SandboxState.RUNNING:
                raise obituary(id, "it was paused, by no call of agent-env")
            sandbox = await AsyncSandbox.connect(id, timeout=1, **self._account())  # never shortens its time
        ports = frozenset(int(port) for port in info.metadata.get(PORTS_LABEL, "").split())
        user = info.metadata.get(USER_LABEL, "root")
        return E2BSandbox(sandbox, self.settings, user, ports, self._mains.get(id))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.list`. Paused ones are listed too."""
        from e2b import AsyncSandbox, SandboxQuery

        query = SandboxQuery(metadata={PROVIDER_LABEL: self.name, **labels})
        pages = AsyncSandbox.list(query=query, limit=_PAGE, **self._account())
        while pages.has_next:
            with translated("listing sandboxes"):
                page = await pages.next_items()
            for info in page:
                yield _described(info)

    async def kill(self, id: str) -> bool:
        """See :meth:`agent_env_core.sandbox.contract.SandboxProvider.kill`."""
        if not _ID.fullmatch(id):
            return False
        from e2b import AsyncSandbox

        with translated(f"ending the sandbox {id}"):
            killed = await AsyncSandbox.kill(id, **self._account())
        if (main := self._mains.pop(id, None)) is not None:
            main.ended = main.ended or "it was killed"
            await main.close()
        return bool(killed)

    async def aclose(self) -> None:
        """Lets go of connections, once what was given up is undone."""
        await asyncio.gather(*self._undoing, return_exceptions=True)
        mains, self._mains = list(self._mains.values()), {}
        await asyncio.gather(*(main.close() for main in mains))


def require_key() -> None:
    """Refuses to go on without a key in the environment, or where the SDK would only pretend.

    Raises:
        NotSetUp: There is no key.
        ConfigError: ``E2B_DEBUG`` is set: calls that create and end sandboxes do nothing then.
    """
    if os.environ.get("E2B_DEBUG", "").lower() == "true":
        raise ConfigError("e2b: with E2B_DEBUG=true the SDK makes no sandboxes and ends none; unset it")
    if not os.environ.get(KEY):
        raise NotSetUp(f"e2b: {KEY} isn't set; make a key at {KEYS_PAGE}, then: export {KEY}=e2b_…")


def _metadata(spec: SandboxSpec, user: str) -> dict[str, str]:
    own = {
        PROVIDER_LABEL: "e2b",
        EXPIRES_LABEL: expires_label(spec.ttl),
        PORTS_LABEL: " ".join(map(str, spec.ports)),
        USER_LABEL: user,
        TTL_LABEL: str(math.ceil(spec.ttl)),
    }
    return {**own, **spec.labels}


def _variables(spec: SandboxSpec) -> dict[str, str]:
    """What every process of the sandbox is started with; see :mod:`agent_env_e2b.supervisor`."""
    ports = {name: str(port) for name, port in spec.port_env.items()}
    folder = {} if spec.workdir is None else {WORKDIR_VARIABLE: spec.workdir}
    return {**packed("SPEC", {**spec.env, **ports}), **folder}


def _network(spec: SandboxSpec) -> Any:
    """Ports are reached with a token only; the way out is open, closed, or a list."""
    if isinstance(spec.network, str):
        return {"allow_public_traffic": False}
    return {"allow_public_traffic": False, "allow_out": list(spec.network), "deny_out": ["0.0.0.0/0"]}


def _described(info: Any) -> SandboxInfo:
    """A sandbox with its labels; that of the lease's end is E2B's own where the time was extended."""
    labels = dict(info.metadata)
    lived = (info.end_at - info.started_at).total_seconds()
    if lived > float(labels.get(TTL_LABEL, "inf")) + _SLACK:
        labels[EXPIRES_LABEL] = str(int(info.end_at.timestamp()))
    return SandboxInfo(info.sandbox_id, labels)

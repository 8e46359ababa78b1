"""One deployed env: started in a sandbox, ready when its card answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from agent_env_core.envs.access import ToolAccess
from agent_env_core.envs.card import CARD_PATH, Card, Method, read_card
from agent_env_core.envs.http import MAX_BODY, Answer, TooLarge, fetch
from agent_env_core.envs.images import PreparedImage
from agent_env_core.envs.mcp import McpError, McpRefusal, McpSession
from agent_env_core.errors import EpisodeError, Gone, Phase, SandboxError, describe, episode_error
from agent_env_core.sandbox.contract import SandboxSpec
from agent_env_core.sandbox.leases import ENV_LABEL

if TYPE_CHECKING:
    from agent_env_core.bundle import Env
    from agent_env_core.envs.clock import VirtualClock
    from agent_env_core.envs.triggers import Triggers
    from agent_env_core.sandbox.contract import Sandbox
    from agent_env_core.sandbox.host import SandboxHost
    from agent_env_core.sandbox.limits import Place

log = logging.getLogger(__name__)

PORT = 18765
READY_TIMEOUT = 180.0
"""Seconds from the start of a sandbox until the env's card must have answered."""
FIRST_PAUSE, PAUSE_GROWTH, LAST_PAUSE = 0.010, 1.2, 0.250
"""Readiness is asked for after 10 ms, 12 ms, … 250 ms: soon when it is quick, seldom when it is slow. A pause is about
a sixth of the time waited so far, and so is what an env that came up just after a try loses by it."""
TRY_TIMEOUT = 5.0
MAX_CARD = 4 * 1024 * 1024
"""Bytes of a card that are read at most; one that describes a thousand tools has a tenth of that."""
LOOK_EVERY = 0.1
"""Seconds between two looks at whether the sandbox still lives while its card doesn't answer."""


@dataclass
class Deployment:
    """A running env.

    Attributes:
        env: What was deployed.
        step_id: The step that deployed it.
        sandbox: Where it runs.
        card: What it says of itself.
        base_url: Its address, without a trailing slash.
        headers: What every request to it must carry.
        client: Its own HTTP client.
        access: Which tools which role may use.
        children: The servers of an env that is made of others; see :mod:`agent_env_core.envs.composed`.
        triggers: What answers calls of its tools, once something was registered.
        clock: Its virtual clock, once it was set.
        opened: Told the role of each session that is made.
    """

    env: Env
    step_id: str
    sandbox: Sandbox
    card: Card
    base_url: str
    headers: Mapping[str, str]
    client: httpx.AsyncClient
    access: ToolAccess = field(default_factory=ToolAccess)
    children: tuple[Deployment, ...] = ()
    triggers: Triggers | None = None
    clock: VirtualClock | None = None
    opened: Callable[[str | None], None] = lambda role: None
    _ahead: dict[str | None, McpSession] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[Deployment, ...]:
        """What runs: its children, or itself where it has none."""
        return self.children or (self,)

    @property
    def mcp_url(self) -> str:
        """Where its tools are called."""
        return self.base_url + self.card.mcp_path

    def session(self, role: str | None) -> McpSession:
        """An MCP session for a role; its caller opens it, which is quick where that was done ahead."""
        self.opened(role)
        return self._ahead.pop(role, None) or self._new_session(role)

    def _new_session(self, role: str | None) -> McpSession:
        return McpSession(self.client, self.mcp_url, self.headers, role)

    async def open_ahead(self, role: str | None) -> None:
        """Opens the session that :meth:`session` will give for a role. If it can't be, that is told to who needs it."""
        session = self._new_session(role)
        try:
            async with asyncio.timeout(TRY_TIMEOUT):
                await session.open()
        except (McpError, McpRefusal, httpx.HTTPError, TimeoutError) as exc:
            log.debug("no session with the env %r was opened ahead: %s", self.env.name, describe(exc))
        else:
            self._ahead[role] = session

    async def answers(self) -> bool:
        """Whether its server answers, in time that the caller bounds. Forgets what was opened ahead and has been lost.

        Raises:
            httpx.HTTPError: There is no answer.
        """
        for role, session in list(self._ahead.items()):
            try:
                await session.ping()
            except McpError:
                del self._ahead[role]
        return bool(self._ahead) or (await fetch(self.client, "GET", self.base_url + CARD_PATH, self.headers)).ok

    async def close(self) -> None:
        """Drops the connections to it. Its sandbox is its host's to end."""
        await self.client.aclose()

    async def call_extension(self, method: Method, arguments: Mapping[str, Any], *, timeout: float) -> Any:
        """Calls one extension method of one of the env's servers and returns its JSON answer.

        Raises:
            EpisodeError: It was refused, failed, or didn't answer in time; the reason holds the server's own words.
        """
        what = f"{method.verb} {method.endpoint} of the env {self.env.name!r}"
        sent: dict[str, Any] = {"params": arguments} if method.verb == "GET" else {"json": dict(arguments)}
        answer = await self.request(method.verb, method.endpoint, what, timeout=timeout, **sent)
        if not answer.ok:
            raise EpisodeError("setup", f"{what} answered {answer.status}: {answer.said}")
        try:
            return answer.json() if answer.body else {}
        except ValueError as exc:
            raise EpisodeError("setup", f"{what} answered with what is not JSON: {exc}") from exc

    async def request(
        self, verb: str, path: str, what: str, *, timeout: float, limit: int = MAX_BODY, **sent: Any
    ) -> Answer:
        """Makes one HTTP request to the env; ``what`` names it in errors.

        Raises:
            EpisodeError: There was no answer in time, or one larger than ``limit`` bytes.
        """
        try:
            async with asyncio.timeout(timeout):
                return await fetch(self.client, verb, self.base_url + path, self.headers, limit=limit, **sent)
        except TimeoutError as exc:
            raise EpisodeError("setup", f"{what} didn't answer within {timeout:g}s", retryable=True) from exc
        except TooLarge as exc:
            raise EpisodeError("setup", f"the answer of {what} can't be read: {exc}") from exc
        except httpx.HTTPError as exc:
            raise await self.failure(exc, "setup", what) from exc

    async def failure(self, exc: BaseException, phase: Phase, doing: str) -> EpisodeError:
        """What it means that a request failed below HTTP: that the env's main process ended, or only that.

        A connection breaks a moment before a provider notices a death, so it is asked more than once.
        """
        for pause in (0.0, 0.05, 0.25):
            await asyncio.sleep(pause)
            if (end := await _death(self.sandbox)) is not None:
                return EpisodeError(phase, f"{doing}: the env {self.env.name!r} ended: {end}", retryable=True)
        return EpisodeError(phase, f"{doing}: the env {self.env.name!r} failed: {describe(exc)}", retryable=True)


async def _death(sandbox: Sandbox) -> str | None:
    """How a sandbox ended, in its provider's words; None while it lives, or where the provider can't say."""
    try:
        async with asyncio.timeout(TRY_TIMEOUT):
            await sandbox.endpoint(PORT)
    except Gone as exc:
        return describe(exc)
    except Exception:  # whatever a provider raises, the failure that is looked into is the one to report
        return None
    return None


@dataclass(frozen=True)
class DeployOptions:
    """What a ``deploy_env`` step asks of a sandbox: seconds to live, cores, MiB."""

    ttl: float
    cpu: float | None = None
    memory_mb: int | None = None


def sandbox_spec(
    env: Env, prepared: PreparedImage, options: DeployOptions, *, private_files: bool = True
) -> SandboxSpec:
    """The sandbox that an env's server runs in."""
    name = env.environment_name
    variables = {"MCP_HOST": "0.0.0.0", "ENVIRONMENT_NAME": name, "SERVICE_NAME": name}
    if env.env_provider_type == "server" and private_files:
        variables["DATABASE_URL"] = f"sqlite:////tmp/{name}.sqlite"
    return SandboxSpec(
        image=prepared.ref,
        command=prepared.command,
        ttl=options.ttl,
        cpu=options.cpu,
        memory_mb=options.memory_mb,
        env=variables,
        ports=(PORT,),
        port_env={"MCP_PORT": PORT},
        labels={ENV_LABEL: env.name},
    )


async def deploy(
    env: Env,
    prepared: PreparedImage,
    host: SandboxHost,
    client: httpx.AsyncClient,
    *,
    step_id: str,
    options: DeployOptions,
    place: Place | None = None,
    roles: Iterable[str | None] = (),
    ready_timeout: float = READY_TIMEOUT,
) -> Deployment:
    """Starts an env and waits until its card answers. Nothing is left behind when it raises or is cancelled.

    The client is the deployment's from then on; when this fails it is left open, and its maker's to close. ``place`` is
    the room that the host gave for it. For each of ``roles`` a session is opened already.

    Raises:
        EpisodeError: Of phase ``deploy``: no sandbox was to be had, the server ended or didn't come up (with the end of
            its output), or it is another than the bundle says.
    """
    spec = sandbox_spec(env, prepared, options, private_files=host.provider.capabilities.private_files)
    try:
        sandbox = await host.create(spec, place=place)
    except Exception as exc:
        raise episode_error(exc, "deploy") from exc
    try:
        endpoint = await sandbox.endpoint(PORT)
        card = await _await_card(env, sandbox, client, endpoint.url, endpoint.headers, ready_timeout)
        if card.name != env.environment_name:
            fix = "set environment_name in env.toml to the name in the code, and let the server honour ENVIRONMENT_NAME"
            raise EpisodeError(
                "deploy",
                f"the env {env.name!r} should be {env.environment_name!r}, and its card says {card.name!r}: {fix}",
            )
        deployment = Deployment(env, step_id, sandbox, card, endpoint.url, endpoint.headers, client)
        for role in roles:
            await deployment.open_ahead(role)
        return deployment
    except BaseException as exc:
        await host.destroy(sandbox.id)
        if isinstance(exc, SandboxError):
            raise episode_error(exc, "deploy") from exc
        raise


async def _await_card(
    env: Env, sandbox: Sandbox, client: httpx.AsyncClient, url: str, headers: Mapping[str, str], timeout: float
) -> Card:
    deadline = time.monotonic() + timeout
    pause, look_at = FIRST_PAUSE, time.monotonic() + LOOK_EVERY
    while True:
        try:
            async with asyncio.timeout(TRY_TIMEOUT):
                answer = await fetch(client, "GET", url + CARD_PATH, headers, limit=MAX_CARD)
            if answer.ok:
                return read_card(answer.json())
            last = f"its card answered HTTP {answer.status}"
        except TimeoutError:
            last = f"its card didn't answer within {TRY_TIMEOUT:g}s"
        except httpx.HTTPError as exc:
            last = describe(exc)
        except ValueError as exc:
            raise EpisodeError("deploy", f"the env {env.name!r} has a card that can't be read: {exc}") from exc
        now = time.monotonic()
        if now >= look_at:
            if (end := await _death(sandbox)) is not None:
                raise EpisodeError("deploy", f"the env {env.name!r} ended before it was ready: {end}")
            look_at = time.monotonic() + LOOK_EVERY
        if now + pause > deadline:
            reason = f"the env {env.name!r} wasn't ready within {timeout:g}s, it must serve {CARD_PATH}: {last}"
            raise EpisodeError("deploy", reason, retryable=True)
        await asyncio.sleep(pause)
        pause = min(pause * PAUSE_GROWTH, LAST_PAUSE)

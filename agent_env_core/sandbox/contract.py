"""The contract between agent-env and a sandbox provider.

A *provider* prepares images and makes sandboxes; a *sandbox* runs commands, moves files, gives an address for a port,
and ends. The contract is small and async. What a provider can do it declares in :class:`Capabilities`; what it does not
declare it refuses with :class:`~agent_env_core.errors.Unsupported` before anything is created.

A provider raises the six errors of :mod:`agent_env_core.errors` and nothing else, except the built-in file errors named
at :meth:`Sandbox.read`. Leases, limits, retries, cancellation safety and reaping are the core's work
(:mod:`agent_env_core.sandbox.host`); a provider stays simple.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from agent_env_core.errors import Unsupported
from agent_env_core.sandbox import allowed

MOST_READ = 512 * 1024 * 1024
"""Bytes of a file that every provider reads in one call."""

Isolation = Literal["none", "namespace", "container", "vm"]
NetworkMode = Literal["open", "none", "allow"]
Limit = Literal["cpu", "memory_mb"]


@dataclass(frozen=True)
class Image:
    """What a sandbox starts from: a registry reference, or a folder with a Dockerfile. Exactly one of the two.

    Attributes:
        ref: A reference that names its registry, e.g. ``docker.io/library/python:3.12-slim``.
        context: A Docker build context.
        dockerfile: Path of the Dockerfile relative to ``context``.
    """

    ref: str | None = None
    context: Path | None = None
    dockerfile: str = "Dockerfile"

    def __post_init__(self) -> None:
        if (self.ref is None) == (self.context is None):
            raise ValueError("an Image has either a ref or a context")


@dataclass(frozen=True)
class SandboxSpec:
    """What to create.

    Attributes:
        image: What ``prepare`` returned.
        ttl: Seconds until the sandbox ends by itself. Always set, and finite.
        command: The main process; empty keeps the sandbox alive with none. An image's own CMD or ENTRYPOINT is never
            relied on.
        env: Environment of the main process and of every ``exec``. Nothing else is inherited from the host.
        workdir: Working folder; None takes the image's.
        ports: Ports that :meth:`Sandbox.endpoint` may be asked for. They must be named up front.
        port_env: Variable name to one of ``ports``: the provider sets the variable to the number the main process must
            bind (the port itself, unless the provider shares the host's network).
        cpu: Cores.
        memory_mb: MiB.
        gpu: A provider's name for a GPU type.
        network: ``"open"``, ``"none"``, or the hosts that may be reached (an allow-list): names, all names below one
            (``*.pypi.org``), addresses, and blocks of them; without schemes, ports and paths.
        labels: Stamped on the sandbox; ``list`` finds it by them.
    """

    image: str
    ttl: float
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    ports: tuple[int, ...] = ()
    port_env: Mapping[str, int] = field(default_factory=dict)
    cpu: float | None = None
    memory_mb: int | None = None
    gpu: str | None = None
    network: Literal["open", "none"] | tuple[str, ...] = "open"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def network_mode(self) -> NetworkMode:
        """The kind of network policy asked for."""
        return self.network if isinstance(self.network, str) else "allow"


@dataclass(frozen=True)
class Endpoint:
    """Where a port of a sandbox is reached: a base URL without a trailing slash, and headers every request carries."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. ``exit_code`` is None exactly when ``timed_out``; killed by signal n gives ``128 + n``."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as ``list`` reports it, with all its labels."""

    id: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Capabilities:
    """What a provider can do. Each claim is tested by the conformance kit, and so is each refusal.

    Attributes:
        isolation: What stands between two sandboxes. With ``"none"`` they share the host's files and network.
        remote: Sandboxes run on another machine.
        build: ``Image.context`` works.
        refs: ``Image.ref`` works.
        gpu: ``SandboxSpec.gpu`` works.
        limits: Which of ``cpu`` and ``memory_mb`` are enforced.
        network: The network modes it keeps.
        private_files: Two sandboxes that write one absolute path never see each other's file.
        ttl_enforced: The TTL is kept by the provider even when our processes are dead.
        extend: :meth:`Sandbox.extend` works.
        max_ttl: The longest TTL in seconds, or None.
        creates_per_second: How many creates in a second the engine or the account allows, where it does count them.
            The core keeps to it.
    """

    isolation: Isolation
    remote: bool = False
    build: bool = False
    refs: bool = False
    gpu: bool = False
    limits: frozenset[Limit] = frozenset()
    network: frozenset[NetworkMode] = frozenset({"open"})
    private_files: bool = True
    ttl_enforced: bool = False
    extend: bool = False
    max_ttl: float | None = None
    creates_per_second: float | None = None


@runtime_checkable
class Sandbox(Protocol):
    """A handle on one running sandbox. Every method raises ``Gone`` once it has ended."""

    @property
    def id(self) -> str:
        """The provider's id, valid in any process."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Runs a command (never a shell string) and waits for it.

        A non-zero exit is a result, and so is a missing program (126 or 127). No ``stdin`` means end of file at once.
        On ``timeout`` the result has ``timed_out`` and the output so far, and the whole process tree is dead when this
        returns, but for what hides on purpose; cancelling the call kills it too. A call is never retried once the
        command may have started.

        A provider may bound what it keeps of each stream, to no less than its first 16 MiB. It reads on, so that the
        command comes to its own end, and puts a line behind what it kept: ``[agent-env: 1234 more bytes were dropped]``
        (:class:`agent_env_core.sandbox.commands.Kept` does it). A command that may say more, and whose last words
        matter, writes to a file.

        Raises:
            Gone: The sandbox ended before or during the call.
        """

    async def read(self, path: str) -> bytes:
        """Reads a file by absolute path.

        Raises:
            FileNotFoundError, IsADirectoryError, PermissionError: As for a local file; a provider may also refuse one
                of more than :data:`MOST_READ`, which a program in there makes in no time, and which takes no disk.
        """

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file by absolute path, making its parents and replacing what is there.

        Raises:
            IsADirectoryError, PermissionError: As for a local file.
        """

    async def endpoint(self, port: int) -> Endpoint:
        """Where ``port`` is reached from this process.

        Raises:
            Unsupported: ``port`` was not in the spec.
        """

    async def extend(self, ttl: float) -> None:
        """Sets the TTL to ``ttl`` seconds from now.

        Raises:
            Unsupported: The provider can't.
        """


@runtime_checkable
class SandboxProvider(Protocol):
    """Makes sandboxes. One object per process and configuration; its methods are called on one event loop."""

    @property
    def name(self) -> str:
        """The name a user types."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do, on this machine, as far as it knows by now. Looking at it asks nothing that may take time."""

    async def prepare(self, image: Image) -> str:
        """Builds or pulls ``image`` once and returns an opaque, content-addressed reference for ``SandboxSpec.image``.

        Calling it again with unchanged content is cheap and gives the same reference, in any process of the machine.

        Raises:
            ImageError: It does not build or does not exist; the message holds the end of the build's output.
        """

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Creates a sandbox; returns when ``exec`` works. Nothing is left behind when it raises.

        Raises:
            Unsupported: See :func:`refuse_unsupported`, called first.
        """

    async def attach(self, id: str) -> Sandbox:
        """A handle on a sandbox that another process made.

        Raises:
            Gone: There is no live sandbox of that id.
        """

    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """The sandboxes that carry all of ``labels``, with all their labels as they are now.

        Leftovers count: a sandbox whose main process has ended stays in the list until :meth:`kill` has removed what
        is left of it, since what isn't listed is never cleaned up. The label of the lease's end is as ``extend`` last
        set it.
        """

    async def kill(self, id: str) -> bool:
        """Ends a sandbox and everything in it. Idempotent; False when there was none."""

    async def aclose(self) -> None:
        """Lets go of connections. Sandboxes are not ended by it."""


@runtime_checkable
class KnowsImageCommand(Protocol):
    """Optional power: the provider can say what command an image starts with, e.g. one that has no Dockerfile here."""

    async def image_command(self, prepared: str) -> tuple[str, ...]:
        """ENTRYPOINT and CMD of a prepared image as one argv; empty where it has neither."""


@runtime_checkable
class Explains(Protocol):
    """Optional power: a provider whose capabilities depend on the machine can say what it found there."""

    def explain(self) -> str:
        """A few words for people, such as what isolates sandboxes here, as far as it knows by now."""


@dataclass(frozen=True)
class Unused:
    """Something that agent-env made to start sandboxes from, and that none uses now: an image, an entry of a cache.

    Attributes:
        id: The provider's name for it.
        what: What it is, in words, with the name of what it was made from where that is known.
        size: Bytes that removing it frees, about; None where the provider can't say.
    """

    id: str
    what: str
    size: int | None = None


@runtime_checkable
class Prunable(Protocol):
    """Optional power: what was prepared for sandboxes, and isn't used, can be found and removed.

    Only what agent-env itself made is ever named or removed, never what others keep in the same place.
    """

    async def unused(self) -> Sequence[Unused]:
        """What no sandbox uses at this moment, and no build under way does."""

    async def prune(self, id: str) -> bool:
        """Removes one of :meth:`unused`; False where it is gone, or used again. What is needed is prepared anew."""


def refuse_unsupported(name: str, capabilities: Capabilities, spec: SandboxSpec) -> None:
    """Refuses a spec that goes past a provider's capabilities. Every provider calls it first in ``create``.

    Raises:
        Unsupported: The message names the field, its value, and what the provider can do.
    """
    longest = capabilities.max_ttl
    if not 0 < spec.ttl < float("inf") or (longest is not None and spec.ttl > longest):
        raise Unsupported(f"{name}: ttl={spec.ttl:g} must be above 0 and at most {longest or 'finite'}")
    if spec.gpu is not None and not capabilities.gpu:
        raise Unsupported(f"{name}: gpu={spec.gpu!r} was asked for, and this provider has no GPUs")
    for limit, asked in (("cpu", spec.cpu), ("memory_mb", spec.memory_mb)):
        if asked is not None and limit not in capabilities.limits:
            raise Unsupported(f"{name}: {limit}={asked:g} can't be enforced by this provider here; leave it unset")
    if spec.network_mode not in capabilities.network:
        kept = ", ".join(sorted(capabilities.network))
        raise Unsupported(f"{name}: network={spec.network!r} can't be kept by this provider; it keeps: {kept}")
    if not isinstance(spec.network, str) and (wrong := "; ".join(allowed.problems(spec.network))):
        raise Unsupported(f"{name}: the hosts that may be reached: {wrong}")
    stray = set(spec.port_env.values()) - set(spec.ports)
    if stray:
        raise Unsupported(f"{name}: port_env names ports that aren't in ports: {sorted(stray)}")

"""A sandbox provider that lives in memory, with faults on demand.

Nothing is started and nothing is written, so thousands of sandboxes cost nothing, and every failure of a real provider
can be had at a chosen moment::

    fake = FakeProvider(capacity=20)
    fake.fault("create", error=Unavailable("lost"), after=True)   # the next create works, and says it didn't
    fake.fault("kill", hang=True, times=2)                        # two kills that never answer
    fake.die(sandbox_id, "out of memory")                         # a sandbox ends now

It is registered under no name: hand it to a :class:`~agent_env_core.sandbox.host.SandboxHost`. It can serve an env
that is an ASGI application, see ``app``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_env_core.errors import Busy, Gone, ImageError, Unsupported
from agent_env_core.sandbox.contract import (
    Capabilities,
    Endpoint,
    ExecResult,
    Image,
    SandboxInfo,
    SandboxSpec,
    refuse_unsupported,
)
from agent_env_core.sandbox.leases import EXPIRES_LABEL, expires_label
from agent_env_core.testing.asgi import Served

Program = Callable[["FakeSandbox", Sequence[str], bytes], Awaitable[ExecResult]]
"""What a command does: the sandbox, its argv and its input, to how it ended."""

METHODS = ("prepare", "create", "attach", "list", "kill", "exec", "read", "write", "endpoint", "extend")

CAPABILITIES = Capabilities(
    isolation="container",
    build=True,
    refs=True,
    network=frozenset({"open"}),
    ttl_enforced=True,
    extend=True,
    max_ttl=86400,
)


@dataclass(frozen=True)
class Fault:
    """What happens to a call.

    Attributes:
        delay: Seconds it takes longer.
        until: It goes on when this is set: what a test does meanwhile comes before, however slow the machine.
        error: Raised by it.
        hang: It never answers; only cancelling ends it.
        after: The call does its work first, then fails: its effect is unknown to the caller.
        dies: The sandbox ends with the call, for this reason; for methods of a sandbox.
    """

    delay: float = 0.0
    until: asyncio.Event | None = None
    error: BaseException | None = None
    hang: bool = False
    after: bool = False
    dies: str = ""


class FakeProvider:
    """See the module's text.

    Args:
        capabilities: What it claims.
        capacity: Sandboxes that may exist at once; a further create is ``Busy``.
        start_time: Seconds each create takes.
        app: Makes the ASGI application that answers on the ports of a sandbox with this spec.
        programs: Commands by name, beside ``true``, ``false``, ``echo``, ``cat`` and ``sleep``.

    Attributes:
        calls: How often each method was called.
        created: How many sandboxes were ever created.
        killed: How many were ended by ``kill``.
        most: The most that ever existed at once.
        most_starting: The most that were ever being created at once.
        sandboxes: Those that exist, by id; ended ones stay until they are killed.
        closed: Whether ``aclose`` was called.
    """

    def __init__(
        self,
        *,
        capabilities: Capabilities = CAPABILITIES,
        capacity: int | None = None,
        start_time: float = 0.0,
        app: Callable[[SandboxSpec], Any] | None = None,
        programs: Mapping[str, Program] | None = None,
    ) -> None:
        self._capabilities = capabilities
        self._capacity = capacity
        self._start_time = start_time
        self._app = app
        self.programs: dict[str, Program] = {**PROGRAMS, **(programs or {})}
        self._faults: dict[str, deque[Fault]] = {method: deque() for method in METHODS}
        self._numbers = itertools.count(1)
        self._images: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.created = self.killed = self.most = self.most_starting = self._starting = 0
        self.sandboxes: dict[str, FakeSandbox] = {}
        self.closed = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return "fake"

    @property
    def capabilities(self) -> Capabilities:
        """What it claims."""
        return self._capabilities

    # -- faults

    def fault(
        self,
        method: str,
        *,
        times: int = 1,
        delay: float = 0.0,
        until: asyncio.Event | None = None,
        error: BaseException | None = None,
        hang: bool = False,
        after: bool = False,
        dies: str = "",
    ) -> None:
        """Makes the next ``times`` calls of ``method`` go wrong; see :class:`Fault`. Several faults queue up.

        Raises:
            ValueError: No method of a provider or a sandbox has that name.
        """
        if method not in self._faults:
            raise ValueError(f"there is no method {method!r}; there are: {', '.join(METHODS)}")
        self._faults[method].extend([Fault(delay, until, error, hang, after, dies)] * times)

    def heal(self) -> None:
        """Takes back all faults that did not happen yet."""
        for waiting in self._faults.values():
            waiting.clear()

    def die(self, id: str, reason: str = "it was evicted") -> None:
        """Ends a sandbox at this moment, as an engine or a kernel would."""
        self.sandboxes[id].finish(reason)

    async def meet(self, method: str, box: FakeSandbox | None = None) -> Fault:
        """Counts a call and lets what is planned for it happen; returns what is left to happen after its work."""
        self.calls[method] += 1
        fault = self._faults[method].popleft() if self._faults[method] else Fault()
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.until is not None:
            await fault.until.wait()
        if fault.dies and box is not None:
            box.finish(fault.dies)
        return fault if fault.after else await _strike(fault)

    # -- the contract

    async def prepare(self, image: Image) -> str:
        """Takes any reference, and any folder with a Dockerfile."""
        fault = await self.meet("prepare")
        wanted = self._capabilities.build if image.context is not None else self._capabilities.refs
        if not wanted:
            raise Unsupported(f"fake: neither a registry nor a Dockerfile can be used for {image}")
        if image.context is not None and not (image.context / image.dockerfile).is_file():
            raise ImageError(f"fake: {image.context} has no {image.dockerfile}")
        prepared = f"fake:{image.ref or image.context}"
        self._images.add(prepared)
        await _strike(fault)
        return prepared

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """Adds a sandbox; its main process is a program of this provider, or runs for ever."""
        refuse_unsupported(self.name, self._capabilities, spec)
        if spec.image not in self._images:
            raise ImageError(f"fake: there is no prepared image {spec.image!r}")
        self._starting += 1
        self.most_starting = max(self.most_starting, self._starting)
        try:
            fault = await self.meet("create")
            if self._start_time:
                await asyncio.sleep(self._start_time)
        finally:
            self._starting -= 1
        if self._capacity is not None and len(self.sandboxes) >= self._capacity:
            raise Busy(f"fake: {self._capacity} sandboxes exist, which is the limit", retry_after=0.01)
        box = FakeSandbox(self, f"fake-{next(self._numbers)}", spec)
        self.sandboxes[box.id] = box
        self.created += 1
        self.most = max(self.most, len(self.sandboxes))
        if self._app is not None and spec.ports:
            box.served = await Served.start(self._app(spec))
        await _strike(fault)
        return box

    async def attach(self, id: str) -> FakeSandbox:
        """The sandbox itself: there is no other process."""
        await _strike(await self.meet("attach"))
        if id not in self.sandboxes:
            raise Gone(f"fake: there is no sandbox {id}")
        self.sandboxes[id].check()
        return self.sandboxes[id]

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """What exists, ended sandboxes included."""
        await _strike(await self.meet("list"))
        for box in list(self.sandboxes.values()):
            if labels.items() <= box.labels.items():
                yield SandboxInfo(box.id, dict(box.labels))

    async def kill(self, id: str) -> bool:
        """Removes a sandbox."""
        fault = await self.meet("kill")
        box = self.sandboxes.pop(id, None)
        if box is not None:
            self.killed += 1
            box.finish("it was killed")
            await box.close()
        await _strike(fault)
        return box is not None

    async def aclose(self) -> None:
        """Only notes that it was called."""
        self.closed = True


class FakeSandbox:
    """A sandbox of a :class:`FakeProvider`.

    Attributes:
        spec: What it was created with.
        labels: Its labels now.
        files: Its files by absolute path.
        executed: The commands it was given.
    """

    def __init__(self, provider: FakeProvider, id: str, spec: SandboxSpec) -> None:
        loop = asyncio.get_running_loop()
        self._provider, self._id, self.spec = provider, id, spec
        self.labels = {EXPIRES_LABEL: expires_label(spec.ttl), **spec.labels}
        self.files: dict[str, bytes] = {}
        self.executed: list[tuple[str, ...]] = []
        self.served: Served | None = None
        self._end: asyncio.Future[str] = loop.create_future()
        self._timer = loop.call_later(spec.ttl, self.finish, "its TTL passed")
        program = provider.programs.get(spec.command[0]) if spec.command else None
        self._main = asyncio.ensure_future(program(self, spec.command, b"")) if program is not None else None
        if self._main is not None:
            self._main.add_done_callback(self._main_ended)

    @property
    def id(self) -> str:
        """Its id."""
        return self._id

    def check(self) -> None:
        """Raises ``Gone`` where it has ended."""
        if self._end.done():
            raise Gone(f"fake: sandbox {self._id} is gone: {self._end.result()}")

    def finish(self, reason: str) -> None:
        """Ends it; what runs in it is interrupted."""
        if not self._end.done():
            self._end.set_result(reason)
        self._timer.cancel()
        if self._main is not None:
            self._main.cancel()

    async def close(self) -> None:
        """Stops what answers on its ports."""
        if self.served is not None:
            await self.served.close()

    def _main_ended(self, main: asyncio.Future[ExecResult]) -> None:
        if not main.cancelled():
            self.finish(f"its main process exited with code {main.result().exit_code}")

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Runs one of the provider's programs; ``env`` and ``cwd`` mean nothing to those that come with it."""
        self.check()
        fault = await self._provider.meet("exec", self)
        self.check()
        self.executed.append(tuple(argv))
        program = self._provider.programs.get(argv[0])
        if program is None:
            return ExecResult(127, b"", f"fake: there is no program {argv[0]}\n".encode())
        work = asyncio.ensure_future(program(self, argv, stdin or b""))
        ends: set[asyncio.Future[Any]] = {work, self._end}
        try:
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            await _strike(fault)
            return work.result() if work.done() else ExecResult(None, b"", b"", timed_out=True)
        finally:
            work.cancel()

    async def read(self, path: str) -> bytes:
        """Reads a file."""
        await self._enter("read")
        if path in self.files:
            return self.files[path]
        if self._is_folder(path):
            raise IsADirectoryError(path)
        raise FileNotFoundError(path)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file."""
        await self._enter("write")
        if self._is_folder(path):
            raise IsADirectoryError(path)
        self.files[path] = bytes(data)

    async def endpoint(self, port: int) -> Endpoint:
        """Where ``app`` answers; without one, an address where nobody does."""
        await self._enter("endpoint")
        if port not in self.spec.ports:
            raise Unsupported(f"fake: port {port} was not asked for at creation; ports: {sorted(self.spec.ports)}")
        return Endpoint(self.served.url if self.served is not None else f"http://{self._id}.invalid:{port}")

    async def extend(self, ttl: float) -> None:
        """Sets the lease's end and the timer."""
        await self._enter("extend")
        if not self._provider.capabilities.extend:
            raise Unsupported("fake: a TTL can't be extended")
        self.labels[EXPIRES_LABEL] = expires_label(ttl)
        self.spec = replace(self.spec, ttl=ttl)
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(ttl, self.finish, "its TTL passed")

    async def _enter(self, method: str) -> None:
        self.check()
        fault = await self._provider.meet(method, self)
        self.check()
        await _strike(fault)

    def _is_folder(self, path: str) -> bool:
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)


async def _strike(fault: Fault) -> Fault:
    """Lets a fault happen; returns none."""
    if fault.hang:
        await asyncio.get_running_loop().create_future()
    if fault.error is not None:
        raise fault.error
    return Fault()


async def _true(box: FakeSandbox, argv: Sequence[str], stdin: bytes) -> ExecResult:
    return ExecResult(0, b"", b"")


async def _false(box: FakeSandbox, argv: Sequence[str], stdin: bytes) -> ExecResult:
    return ExecResult(1, b"", b"")


async def _echo(box: FakeSandbox, argv: Sequence[str], stdin: bytes) -> ExecResult:
    return ExecResult(0, " ".join(argv[1:]).encode() + b"\n", b"")


async def _cat(box: FakeSandbox, argv: Sequence[str], stdin: bytes) -> ExecResult:
    missing = [path for path in argv[1:] if path not in box.files]
    if missing:
        return ExecResult(1, b"", f"cat: {missing[0]}: no such file\n".encode())
    return ExecResult(0, b"".join(box.files[path] for path in argv[1:]) if argv[1:] else stdin, b"")


async def _sleep(box: FakeSandbox, argv: Sequence[str], stdin: bytes) -> ExecResult:
    await asyncio.sleep(float(argv[1]))
    return ExecResult(0, b"", b"")


PROGRAMS: Mapping[str, Program] = {"true": _true, "false": _false, "echo": _echo, "cat": _cat, "sleep": _sleep}
"""The commands every fake sandbox knows."""

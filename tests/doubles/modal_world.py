"""What the double of Modal knows: apps, images, sandboxes, and the commands in them."""

from __future__ import annotations

import asyncio
import json
import posixpath
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from box import Box, Process
from grpclib import GRPCError, Status
from modal_images import Images
from modal_proto import api_pb2 as api
from modal_wire import Faults

CREDENTIALS = ("ak-double", "as-double")

Ended = api.GenericResult
FS_TOOL = "/__modal/.bin/modal-sandbox-fs-tools"


class Running:
    """A command in a sandbox: a process, or the SDK's tool for files. All its output is kept, to be read from any byte.

    Attributes:
        output: What it wrote, by descriptor.
        code: How it ended, negative for a signal.
        taken: Bytes of input that were taken.
        closed: Whether its input is closed.
    """

    def __init__(self) -> None:
        self.output = {1: bytearray(), 2: bytearray()}
        self._open = {1, 2}
        self._more = asyncio.Event()
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.taken, self.closed = 0, False

    async def read(self, fd: int, offset: int) -> bytes:
        """What it wrote from there on, as soon as there is something; empty at the end of all that held it open."""
        while len(self.output[fd]) <= offset and fd in self._open:
            self._more.clear()
            await self._more.wait()
        return bytes(self.output[fd][offset : offset + (1 << 18)])

    def wrote(self, fd: int, data: bytes) -> None:
        """Notes output; nothing is its end."""
        self.output[fd] += data
        if not data:
            self._open.discard(fd)
        self._more.set()

    def end(self, code: int) -> None:
        """Notes the end."""
        if not self.code.done():
            self.code.set_result(code)

    async def feed(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Takes input from there on; what came before is known already."""
        fresh = data[max(0, self.taken - offset) :]
        if self.closed and fresh:
            raise GRPCError(Status.FAILED_PRECONDITION, "the input is closed")
        self.taken += len(fresh)
        await self._take(fresh)
        if eof and not self.closed:
            self.closed = True
            await self._take_end()

    async def _take(self, data: bytes) -> None:
        raise NotImplementedError

    async def _take_end(self) -> None:
        raise NotImplementedError


class Command(Running):
    """A process."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._tasks = [
            asyncio.create_task(self._copy(1, process.stdout)),
            asyncio.create_task(self._copy(2, process.stderr)),
            asyncio.create_task(self._wait()),
        ]

    async def _copy(self, fd: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 18):
            self.wrote(fd, data)
        self.wrote(fd, b"")

    async def _wait(self) -> None:
        self.end(await self._process.wait())

    async def _take(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except ConnectionError:
            raise GRPCError(Status.FAILED_PRECONDITION, "the command reads no more") from None

    async def _take_end(self) -> None:
        self._process.stdin.close()


class FileTool(Running):
    """The program that Modal puts into each sandbox for the SDK's calls on files."""

    KINDS: Mapping[type[OSError], str] = {
        FileNotFoundError: "NotFound",
        IsADirectoryError: "IsDirectory",
        NotADirectoryError: "NotDirectory",
        FileExistsError: "AlreadyExists",
        PermissionError: "PermissionDenied",
    }

    def __init__(self, box: Box, command: str) -> None:
        super().__init__()
        ((self._kind, asked),) = json.loads(command).items()
        self._box, self._path, self._data = box, asked["path"], bytearray()
        self._task = asyncio.create_task(self._do(self._read)) if self._kind == "ReadFile" else None

    def _read(self) -> bytes:
        return Path(self._path).read_bytes()

    def _write(self) -> bytes:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._data)
        return b""

    async def _do(self, work: Callable[[], bytes]) -> None:
        code = 0
        try:
            self.wrote(1, await self._box.inside(work))
        except OSError as exc:
            code = 1
            said = {"error_kind": self.KINDS.get(type(exc), "Other"), "message": exc.strerror or str(exc)}
            self.wrote(2, json.dumps(said).encode())
        except RuntimeError:  # the box has ended
            code = -9
        for fd in (1, 2):
            self.wrote(fd, b"")
        self.end(code)

    async def _take(self, data: bytes) -> None:
        self._data += data

    async def _take_end(self) -> None:
        if self._kind == "WriteFile":
            self._task = asyncio.create_task(self._do(self._write))


class Sandbox:
    """One sandbox."""

    def __init__(self, app_id: str, asked: api.Sandbox, tags: Mapping[str, str], box: Box, *, first: bool) -> None:
        number = uuid.uuid4().hex.upper()
        # The SDK tells by these two for which backend a sandbox is.
        self.id = f"sb-{number[:22]}" if first else f"sb-{number[:26]}"
        self.task_id = f"ta-{number}" if first else f"ta-{number}V"
        self.app_id, self.asked, self.tags, self.box = app_id, asked, dict(tags), box
        self.created = time.time()
        self.result: api.GenericResult | None = None
        self.over = asyncio.Event()
        self.execs: dict[str, Running] = {}
        self.tunnels: list[api.TunnelData] = []
        self.connect_ports: dict[int, int] = {}
        self.life: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> api.SandboxHandleMetadata:
        """What the SDK learns of it with each answer."""
        return api.SandboxHandleMetadata(app_id=self.app_id, result=self.result)

    async def live(self, main: Process) -> None:
        """Ends it with its main process or at the end of its time, whichever is first."""
        try:
            async with asyncio.timeout(self.asked.timeout_secs):
                code = await main.wait()
        except TimeoutError:
            await self.finish(Ended.GENERIC_STATUS_TIMEOUT)
        else:
            status = Ended.GENERIC_STATUS_FAILURE if code else Ended.GENERIC_STATUS_SUCCESS
            await self.finish(status, code if code >= 0 else 128 - code)

    async def finish(self, status: Ended.GenericStatus.ValueType, code: int = 0) -> None:
        """Ends it."""
        if self.result is None:
            self.result = api.GenericResult(status=status, exitcode=code)
            await self.box.stop()
            self.over.set()


class World:
    """Everything.

    Attributes:
        credentials: The token that is let in.
        capacity: Sandboxes that may run at once; None is any number.
        most: The most that ever ran at once.
        sandboxes: All that ever were, by id.
        control: Faults and calls of the control plane.
        router: Faults and calls of the command router.
    """

    def __init__(self) -> None:
        self.credentials: tuple[str, str] | None = CREDENTIALS
        self.capacity: int | None = None
        self.most = 0
        self.apps: dict[tuple[str, str], str] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        self.created: dict[str, asyncio.Task[Sandbox]] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.images = Images()
        self.control, self.router = Faults(), Faults()
        self.url = self.router_url = ""

    def find(self, name: str) -> Sandbox:
        """A sandbox by its id or that of its task."""
        for sandbox in self.sandboxes.values():
            if name in (sandbox.id, sandbox.task_id):
                return sandbox
        raise GRPCError(Status.NOT_FOUND, f"there is no {name!r}")

    def running(self, tags: Mapping[str, str] | None = None) -> list[Sandbox]:
        """Those that run and have these tags, the newest first."""
        wanted = (tags or {}).items()
        found = [each for each in self.sandboxes.values() if each.result is None and wanted <= each.tags.items()]
        return sorted(found, key=lambda each: -each.created)

    async def create(self, asked: api.SandboxCreateV2Request, *, first: bool) -> Sandbox:
        """Makes a sandbox and starts its main process."""
        if self.capacity is not None and len(self.running()) + self.starting >= self.capacity:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"the workspace may run {self.capacity} sandboxes at once")
        definition = asked.definition
        if definition.image_id not in self.images.known:
            raise GRPCError(Status.NOT_FOUND, f"there is no image {definition.image_id}")
        self.starting += 1
        try:
            env = {name: value for source in asked.secret_sources for name, value in source.env.contents.items()}
            limits = definition.resources
            box = await Box.start(
                await self.images.root(definition.image_id),
                env=env,
                workdir=definition.workdir or None,
                cpu=limits.milli_cpu_max / 1000 or None,
                memory_mb=limits.memory_mb_max or None,
            )
            tags = {each.tag_name: each.tag_value for each in asked.tags}
            sandbox = Sandbox(asked.app_id, definition, tags, box, first=first)
            self.sandboxes[sandbox.id] = sandbox
            self.most = max(self.most, len(self.running()))
        finally:
            self.starting -= 1
        try:
            entrypoint = self.images.known[definition.image_id].entrypoint
            main = await box.spawn([*entrypoint, *definition.entrypoint_args])
        except OSError:
            await sandbox.finish(Ended.GENERIC_STATUS_FAILURE, 127)
            return sandbox
        sandbox.execs["main"] = Command(main)
        sandbox.life = asyncio.create_task(sandbox.live(main))
        return sandbox

    starting = 0

    async def exec(self, sandbox: Sandbox, argv: list[str], env: Mapping[str, str], cwd: str) -> Running:
        """Starts a command."""
        if argv[0] == FS_TOOL:
            return FileTool(sandbox.box, argv[1])
        try:
            return Command(await sandbox.box.spawn(argv, env=env, cwd=posixpath.join("/", cwd) if cwd else None))
        except RuntimeError:
            raise GRPCError(Status.NOT_FOUND, "the task has ended") from None
        except OSError as exc:
            raise GRPCError(Status.INVALID_ARGUMENT, f"{argv[0]}: {exc.strerror}") from None

    async def close(self) -> None:
        """Ends everything."""
        for sandbox in self.sandboxes.values():
            if sandbox.life is not None:
                sandbox.life.cancel()
        await asyncio.gather(*(each.finish(Ended.GENERIC_STATUS_TERMINATED) for each in self.sandboxes.values()))

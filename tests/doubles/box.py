"""The machine behind every double of a cloud: real processes, files of its own, ports of its own, gone without a trace.

A box is a thread that has stepped into new mount, process and network namespaces and into a root of its own: an overlay
over this machine's files, whose upper side is in memory. What that thread does happens inside the box: it
starts processes there, opens files by the box's own links, and makes sockets that reach the box's own ports. Nothing is
installed and nothing is mounted where the host sees it; when the thread or this process ends, the kernel kills all.

It needs root on Linux; :func:`why_not` says what is missing. It is a test double and no security boundary: processes
read the host's files. There is no network besides loopback, a limit of memory holds for each process by itself, and one
of cores below 1 holds roughly.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fcntl import ioctl
from pathlib import Path
from ssl import SSLContext
from typing import TypeVar

import pytest

T = TypeVar("T")

PYTHON = str(Path(sys.executable).parent)
"""Folder of the Python that runs the tests, with all that is installed beside it: a box's own ``python3``."""

PATH = f"{PYTHON}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_libc = ctypes.CDLL(None, use_errno=True)
_NEW_FS, _NEW_MOUNTS, _NEW_PIDS, _NEW_NET = 0x200, 0x20000, 0x20000000, 0x40000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41

_INIT = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", "mount -t proc proc /proc && echo up; sleep infinity & wait")
"""Process 1: dies with the thread that started it, and collects orphans."""

_THROTTLE = """
import os, signal, sys, time
share = float(sys.argv[1])
while True:
    for what, part in ((signal.SIGCONT, share), (signal.SIGSTOP, 1 - share)):
        try:
            os.kill(-1, what)
        except ProcessLookupError:
            pass
        time.sleep(0.1 * part)
"""


def why_not() -> str:
    """Why there can't be boxes on this machine; empty where there can."""
    if sys.platform != "linux":
        return "boxes need Linux"
    return "" if os.geteuid() == 0 else "boxes need root"


def require() -> None:
    """Skips a test where there can't be boxes; in CI it fails, so that nothing goes untested unnoticed."""
    if reason := why_not():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI runs the tests of doubles, and {reason}", pytrace=False)
        pytest.skip(reason)


@dataclass(frozen=True)
class Root:
    """What a box starts from: an image, once it is built.

    Attributes:
        layer: What differs from this machine's own files: a folder as :meth:`Box.commit` writes it.
        env: Variables of every process.
        workdir: Where processes start.
    """

    layer: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/"


class Process:
    """A process in a box, with its three streams."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self.pid = popen.pid
        self._ended = asyncio.get_running_loop().create_future()
        self.stdin: asyncio.StreamWriter
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()

    async def connect(self) -> Process:
        """Takes the pipes and the end into the running event loop."""
        loop, popen = asyncio.get_running_loop(), self._popen
        watched = os.pidfd_open(popen.pid)
        loop.add_reader(watched, self._reap, watched)
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        for reader, pipe in ((self.stdout, popen.stdout), (self.stderr, popen.stderr)):
            await loop.connect_read_pipe(lambda reader=reader: asyncio.StreamReaderProtocol(reader), pipe)  # type: ignore[misc]
        transport, protocol = await loop.connect_write_pipe(lambda: asyncio.streams.FlowControlMixin(loop), popen.stdin)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        return self

    def _reap(self, watched: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(watched)
        os.close(watched)
        self._ended.set_result(self._popen.wait())

    @property
    def returncode(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Waits for its end, and not for that of its output, which a child may hold open."""
        code: int = await asyncio.shield(self._ended)
        return code

    def kill(self) -> None:
        """Ends it with its process group, as the clouds do: children in a session of their own live on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Box:
    """One machine. Made by :meth:`start`; belongs to the event loop that made it."""

    def __init__(self, root: Root, memory_mb: int | None) -> None:
        self.root, self._memory_mb = root, memory_mb
        self._thread = ThreadPoolExecutor(1, "box")
        self._mount = Path(tempfile.mkdtemp(prefix="box-"))
        self._processes: set[Process] = set()
        self._servers: list[asyncio.Server] = []
        self._talking: set[asyncio.Task[None]] = set()
        self.running = False

    # -- life

    @classmethod
    async def start(
        cls,
        root: Root | None = None,
        *,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
    ) -> Box:
        """A new machine.

        Args:
            root: What it starts from.
            env: More variables of every process.
            workdir: Where processes start, instead of where the root says; made where it doesn't exist.
            cpu: Cores.
            memory_mb: MiB that one process may take.
        """
        root = root or Root()
        root = replace(root, env={**root.env, **(env or {})}, workdir=workdir or root.workdir)
        box = cls(root, memory_mb)
        try:
            await box.inside(box._enter)
            box.running = True
            await box.inside(lambda: Path(root.workdir).mkdir(parents=True, exist_ok=True))
            if cpu is not None and cpu < 1:
                await box.spawn([f"{PYTHON}/python3", "-ISc", _THROTTLE, str(cpu)])
        except BaseException:
            await asyncio.shield(box.stop())
            raise
        return box

    def _enter(self) -> None:
        """Runs first in the thread, and makes it the machine's own."""
        mount, top = self._mount, self._mount / "top"
        _check(_libc.unshare(_NEW_FS | _NEW_MOUNTS | _NEW_NET), "unshare")
        _mounted("none", "/", None, _RECURSIVE | _PRIVATE)
        _mounted("tmpfs", str(mount), "tmpfs")
        for name in ("upper", "work", "top"):
            (mount / name).mkdir()
        if self.root.layer is not None:  # as a second lower side it would overlap with the first
            _copy(f"{self.root.layer}/.", f"{mount}/upper")
        _mounted("overlay", str(top), "overlay", 0, f"lowerdir=/,upperdir={mount}/upper,workdir={mount}/work")
        _mounted("/dev", f"{top}/dev", None, _BIND | _RECURSIVE)
        _mounted("tmpfs", f"{top}/tmp", "tmpfs", 0, "mode=1777")
        for place in {sys.prefix, sys.base_prefix}:  # a mount of its own isn't in the overlay
            if not os.path.exists(f"{top}{place}/bin"):
                os.makedirs(f"{top}{place}", exist_ok=True)
                _mounted(place, f"{top}{place}", None, _BIND | _RECURSIVE)
        self._upper = os.open(mount / "upper", os.O_RDONLY)
        os.chroot(top)
        os.chdir("/")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP_AND_RUNNING))
        _check(_libc.unshare(_NEW_PIDS), "unshare")  # the next process that starts is number 1
        self._init = subprocess.Popen(
            _INIT, env={"PATH": PATH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._init.stdout
        with self._init.stdout as said:
            if said.readline() != b"up\n":
                raise RuntimeError("a box has no /proc")

    async def stop(self) -> None:
        """Ends all of it. Idempotent."""
        self.running = False
        for server in self._servers:
            server.close()
        if (init := getattr(self, "_init", None)) is not None:
            del self._init
            init.kill()
            await asyncio.get_running_loop().run_in_executor(None, init.wait)
            os.close(self._upper)
        await asyncio.gather(*(process.wait() for process in self._processes))
        for process in self._processes:
            process.stdin.close()
        for task in self._talking:
            task.cancel()
        self._thread.shutdown(wait=False)
        with contextlib.suppress(OSError):
            self._mount.rmdir()

    async def commit(self, folder: Path) -> Root:
        """Everything that was written, as a root whose layer ``folder`` becomes. The box is stopped by it."""
        await asyncio.to_thread(_copy, f"/proc/self/fd/{self._upper}/.", str(folder), self._upper)
        await self.stop()
        return replace(self.root, layer=folder)

    # -- inside

    async def inside(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in the machine: its files, by its own links, and its network. It must be quick."""
        started: Future[T] = self._thread.submit(work)
        return await asyncio.wrap_future(started)

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> Process:
        """Starts a process in a session of its own, with pipes.

        Raises:
            OSError: There is no such program or folder.
        """
        if not self.running:
            raise RuntimeError("the box has ended")
        whole = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **self.root.env, **(env or {})}
        limit = () if self._memory_mb is None else ("prlimit", f"--as={self._memory_mb << 20}", "--")

        def start() -> subprocess.Popen[bytes]:
            pipe = subprocess.PIPE
            return subprocess.Popen(
                [*limit, *argv], env=whole, cwd=cwd or self.root.workdir, start_new_session=True,
                stdin=pipe, stdout=pipe, stderr=pipe,
            )  # fmt: skip

        process = await Process(await self.inside(start)).connect()
        self._processes.add(process)
        return process

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to one of the machine's own ports.

        Raises:
            OSError: Nothing listens there.
        """
        sock = await self.inside(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        except BaseException:
            sock.close()
            raise
        return await asyncio.open_connection(sock=sock)

    async def forward(self, port: int, *, head: bytes | None = None, ssl: SSLContext | None = None) -> int:
        """A port of the host that leads to one of the machine's.

        Args:
            port: The machine's port.
            head: A line that every connection's first request must have, ``authorization: Bearer x`` in lower case
                say; one without it is answered with 401. None lets all through.
            ssl: Speaks TLS on the host's side.
        """

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task
            self._talking.add(task)
            try:
                await self._join(port, head, reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
                pass  # as a proxy does, and at the box's end: the other side is hung up on
            finally:
                self._talking.discard(task)
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=ssl)
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    async def _join(
        self, port: int, head: bytes | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        first = b""
        if head is not None:
            first = await reader.readuntil(b"\r\n\r\n")
            if head not in first.lower().split(b"\r\n"):
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return await writer.drain()
        try:
            behind, before = await self.connect(port)
        except OSError:
            if head is not None:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            return None
        before.write(first)
        try:
            await asyncio.gather(_pass(reader, before), _pass(behind, writer))
        finally:
            before.close()
        return None


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()


@contextlib.asynccontextmanager
async def box(root: Root | None = None) -> AsyncIterator[Box]:
    """A box for as long as the context is open."""
    made = await Box.start(root)
    try:
        yield made
    finally:
        await made.stop()


def _copy(source: str, target: str, *descriptors: int) -> None:
    """Copies files with all that an overlay keeps of them, marks of removed ones among it."""
    subprocess.run(("cp", "-a", "--preserve=all", source, target), check=True, pass_fds=descriptors)


def _check(answer: int, doing: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")


def _mounted(source: str, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    raw = [None if text is None else text.encode() for text in (source, target, kind, options)]
    _check(_libc.mount(raw[0], raw[1], raw[2], ctypes.c_ulong(flags), raw[3]), f"mount {target}")

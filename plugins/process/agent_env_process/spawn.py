"""Child processes on an event loop: in a session of their own, dying with their starter, waited for by pidfd.

The standard library's asyncio processes cost a thread each on Python 3.11 and don't say whether the pipes or the
process ended first; a sandbox needs to know.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from agent_env_process.procs import Known

DRAIN = 1.0
"""Seconds that output is still read after a command ended, should a child of it hold the pipe open."""

#: Asks the kernel to kill this process when the one that started it ends, then becomes the program.
_FALLBACK = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@cache
def _dying_with_us() -> tuple[str, ...]:
    """What goes before a command so that the kernel kills it when the thread that started it ends.

    That is the event loop's thread, which lives as long as anybody could use the sandbox. Not ``preexec_fn``: Python
    code between fork and exec may hang in a process with threads.
    """
    if not sys.platform.startswith("linux"):
        return ()  # no such thing: the reaper is left
    setpriv = shutil.which("setpriv")
    if setpriv is not None:
        prefix = (setpriv, "--pdeathsig", "KILL", "--")
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return (sys.executable, "-I", "-S", "-c", _FALLBACK)


def find_program(name: str, path: str, cwd: Path) -> str | None:
    """The program that ``name`` means in ``cwd`` with the search path ``path``; None if there is none."""
    return shutil.which(str(cwd / name) if "/" in name else name, path=path)


class _Reader(asyncio.Protocol):
    """Hands on what a pipe brings, and says when it has ended."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self._sink(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _same(reader: _Reader) -> _Reader:
    return reader


class Child:
    """A running process: started when this is made, connected by :meth:`connect`.

    Between the two nothing can be cancelled, so whoever starts a process always learns which one it is. Every one must
    come to :meth:`close`.

    Args:
        argv: The command; its first element must be an existing program. It gets a session of its own.
        env: Its whole environment.
        cwd: Its working folder.
        stdout: Called with each piece of output.
        stderr: The same for the other stream; None sends it to ``stdout``.
        stdin: What it reads; None gives it the end of file at once.

    Raises:
        OSError: It can't be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None] | None = None,
        stdin: bytes | None = None,
    ) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stdin = stdin
        self._readers: list[_Reader] = []
        self._transports: list[asyncio.BaseTransport] = []
        self._pidfd: int | None = None
        self._popen = subprocess.Popen(
            [*_dying_with_us(), *argv],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,  # without an input too: what is opened here shows the way to this machine's files
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if stderr is None else subprocess.PIPE,
            start_new_session=True,
        )
        self.known = Known.look(self._popen.pid)
        self._input = self._popen.stdin
        self._outputs = [(self._popen.stdout, stdout), (self._popen.stderr, stderr)]
        self._watch()

    async def connect(self) -> None:
        """Feeds the process and reads from it, from here on."""
        loop = asyncio.get_running_loop()
        while self._outputs:
            pipe, sink = self._outputs.pop(0)
            if pipe is not None and sink is not None:
                reader = _Reader(sink)
                transport, _ = await loop.connect_read_pipe(partial(_same, reader), pipe)
                self._transports.append(transport)
                self._readers.append(reader)
        source, self._input = self._input, None
        if source is not None:
            feed, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, source)
            self._transports.append(feed)
            feed.write(self._stdin or b"")
            feed.write_eof()  # closes once all is written; a command that doesn't read it all is no error

    @property
    def code(self) -> int | None:
        """How it ended, as a shell says it: ``128 + n`` for signal n. None while it runs."""
        code = self._popen.returncode
        return 128 - code if code is not None and code < 0 else code

    async def finish(self) -> int:
        """Waits for its end and for its output; a pipe that a child of it holds open is not waited for long."""
        await asyncio.shield(self.exited)
        waiting = [reader.ended for reader in self._readers if not reader.ended.done()]
        if waiting:
            await asyncio.wait(waiting, timeout=DRAIN)
        return await self.exited

    def close(self) -> None:
        """Lets go of pipes and descriptors. The process must have ended, or is not waited for any longer."""
        if self._popen.poll() is None:  # killed and slow to die: it is collected whenever it does, loop or no loop
            threading.Thread(target=self._popen.wait, name=f"collect {self._popen.pid}", daemon=True).start()
        for transport in self._transports:
            if not isinstance(transport, asyncio.WriteTransport):
                transport.close()
            elif transport.get_write_buffer_size():  # closing would wait for input that nobody reads any more
                transport.abort()
        for pipe in (self._input, *(pipe for pipe, _ in self._outputs)):  # those that were never connected
            if pipe is not None:
                pipe.close()
        self._unwatch()

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(self._popen.pid)
            loop.add_reader(self._pidfd, self.look)
        except (AttributeError, OSError):  # another system, or no descriptor left: then a thread waits
            loop.run_in_executor(None, self._popen.wait).add_done_callback(lambda _: self.look())

    def look(self) -> None:
        """Notes at once that the process has ended, if it has."""
        if self._popen.poll() is None:
            return
        self._unwatch()
        if not self.exited.done():
            self.exited.set_result(self.code or 0)

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

"""The handle on one sandbox: commands, files and addresses, from the process that made it or from any other."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_env_core.errors import Gone, Unavailable, Unsupported
from agent_env_core.sandbox.contract import Endpoint, ExecResult
from agent_env_core.sandbox.leases import EXPIRES_LABEL, expires_label
from agent_env_process.environment import LOOPBACK
from agent_env_process.images import PreparedImage
from agent_env_process.output import Kept
from agent_env_process.procs import end_all
from agent_env_process.running import Running, death
from agent_env_process.spawn import Child, find_program
from agent_env_process.state import Record, State

COMMAND_MARK = "AGENT_ENV_COMMAND"
"""Holds a value of its own in every process of one command."""

CANNOT_RUN, NOT_FOUND = 126, 127


class ProcessSandbox:
    """One sandbox. See :class:`agent_env_core.sandbox.contract.Sandbox` for what its methods promise.

    Args:
        id: Its id.
        state: Where sandboxes are recorded.
        image: What it was made from.
        running: The sandboxes of this process, by id.
    """

    def __init__(self, id: str, state: State, image: PreparedImage, running: Mapping[str, Running]) -> None:
        self._id, self._state, self._running = id, state, running
        self._paths = image.paths(state.root(id))
        self._last: Running | None = running.get(id)

    @property
    def id(self) -> str:
        """Its id, valid in any process of this machine and user."""
        return self._id

    async def check(self) -> Record:
        """Its record.

        Raises:
            Gone: It ended.
        """
        if self._last is not None:
            await self._last.settle()
        if self._last is not None and self._last.end is not None:
            raise Gone(f"process: sandbox {self._id} is gone: {self._last.end}")
        record = self._state.load(self._id)
        if record is None:
            raise Gone(f"process: sandbox {self._id} is gone: it was killed")
        if self._last is None and record.main is not None and not record.main.alive:
            raise Gone(f"process: sandbox {self._id} is gone: {death(None, self._state.log(self._id))}")
        return record

    async def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
    ) -> ExecResult:
        """Runs a command in the sandbox's folder and environment, and waits for it.

        Arguments that name a file of the sandbox by its absolute path are rewritten, as are the image's own paths
        inside longer ones.
        """
        if not argv:
            raise ValueError("exec needs a program")
        record = await self.check()
        mark = uuid.uuid4().hex
        own = {name: self._paths.text(value) for name, value in (env or {}).items()}
        whole = {**record.env, **own, COMMAND_MARK: mark}
        folder = Path(record.workdir) if cwd is None else self._folder(cwd)
        command = self._paths.command(argv)
        if not folder.is_dir():
            return _cannot(CANNOT_RUN, f"there is no folder {cwd or record.workdir}")
        program = find_program(command[0], whole["PATH"], folder)
        if program is None:
            return _cannot(NOT_FOUND, f"there is no program {argv[0]}")
        out, err = Kept(), Kept()
        try:
            child = Child([program, *command[1:]], env=whole, cwd=folder, stdout=out.add, stderr=err.add, stdin=stdin)
        except OSError as exc:
            if exc.errno == errno.E2BIG:
                return _cannot(CANNOT_RUN, f"{argv[0]} can't be run: {exc.strerror}")
            raise Unavailable(f"process: {argv[0]} was not started: {exc}") from exc
        try:
            code: int | None
            try:
                async with asyncio.timeout(timeout):
                    await child.connect()
                    code = await child.finish()
            except TimeoutError:
                await self._end(child, mark)
                code = None
            except BaseException:
                await asyncio.shield(self._end(child, mark))
                raise
        finally:
            child.close()
        await self.check()
        return ExecResult(code, out.value(), err.value(), timed_out=code is None)

    async def read(self, path: str) -> bytes:
        """Reads a file of the sandbox's folder."""
        await self.check()
        return await asyncio.to_thread(self._paths.host(path).read_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file of the sandbox's folder, making its parents."""
        await self.check()
        place = self._paths.host(path)

        def write() -> None:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

        await asyncio.to_thread(write)

    async def endpoint(self, port: int) -> Endpoint:
        """The loopback address of the port that stands for ``port``."""
        record = await self.check()
        if port not in record.ports:
            raise Unsupported(f"process: port {port} was not asked for at creation; ports: {sorted(record.ports)}")
        return Endpoint(f"http://{LOOPBACK}:{record.ports[port]}")

    async def extend(self, ttl: float) -> None:
        """Sets the lease's end to ``ttl`` seconds from now."""
        record = await self.check()
        labels = {**record.labels, EXPIRES_LABEL: expires_label(ttl)}
        if self._state.update(self._id, labels=labels) is None:
            await self.check()

    async def _end(self, child: Child, mark: str) -> None:
        """Kills a command with everything it started, and takes what it had written."""
        await asyncio.to_thread(end_all, f"{COMMAND_MARK}={mark}", child.known)
        await child.finish()

    def _folder(self, path: str) -> Path:
        """A working folder: the sandbox's, or the machine's where the sandbox has none of that name."""
        place = self._paths.host(path)
        return place if place.is_dir() else Path(path)


def _cannot(code: int, why: str) -> ExecResult:
    return ExecResult(code, b"", f"agent-env: {why}\n".encode())

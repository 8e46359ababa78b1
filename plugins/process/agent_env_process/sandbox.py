"""The handle on one sandbox: commands, files and addresses, from the process that made it or from any other."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from agent_env_core.errors import Gone, Unavailable, Unsupported
from agent_env_core.sandbox.commands import Kept
from agent_env_core.sandbox.contract import Endpoint, ExecResult
from agent_env_core.sandbox.leases import EXPIRES_LABEL, expires_label
from agent_env_process.cgroups import overrun
from agent_env_process.environment import LOOPBACK
from agent_env_process.images import PreparedImage
from agent_env_process.procs import end_all
from agent_env_process.rooted import Rooted
from agent_env_process.running import WITHOUT_HOLDER, Running, death
from agent_env_process.spawn import Child
from agent_env_process.state import Record, State
from agent_env_process.views import CANNOT_RUN, CannotRun, CellView, SharedView, View

T = TypeVar("T")

COMMAND_MARK = "AGENT_ENV_COMMAND"
"""Holds a value of its own in every process of one command."""

COMMAND_LIMIT = 32 << 20
"""Bytes kept of each stream of one command; a program may print for ever, this process must not keep it all."""


class ProcessSandbox:
    """One sandbox. See :class:`agent_env_core.sandbox.contract.Sandbox` for what its methods promise.

    Args:
        id: Its id.
        state: Where sandboxes are recorded.
        image: What it was made from.
        running: The sandboxes of this process, by id.
    """

    def __init__(self, id: str, state: State, image: PreparedImage, running: Mapping[str, Running]) -> None:
        self._id, self._state, self._image, self._running = id, state, image, running
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
            raise Gone(f"process: sandbox {self._id} is gone: {death(None, self._state.log(self._id), record.groups)}")
        if record.private and (record.holder is None or not record.holder.alive):
            raise Gone(f"process: sandbox {self._id} is gone: {WITHOUT_HOLDER}{overrun(record.groups)}")
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

        Without namespaces, arguments that name a file of the sandbox by its absolute path are rewritten, as are the
        image's own paths inside longer ones.
        """
        if not argv:
            raise ValueError("exec needs a program")
        record = await self.check()
        mark = uuid.uuid4().hex
        view = view_of(record, self._state, self._image)
        own = {name: view.text(value) for name, value in (env or {}).items()}
        whole = {**record.env, **own, COMMAND_MARK: mark}
        out, err = Kept(COMMAND_LIMIT), Kept(COMMAND_LIMIT)
        try:
            command, place = view.command(argv, whole, record.workdir if cwd is None else view.folder(cwd))
            child = Child(command, env=whole, cwd=place, stdout=out.add, stderr=err.add, stdin=stdin)
        except CannotRun as exc:
            await self.check()  # or it only ended meanwhile
            return _cannot(exc.code, exc.why)
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
        """Reads a file of the sandbox, wherever links in it point: never one of this machine's."""
        return await self._with_files(lambda files: files.read(path))

    async def write(self, path: str, data: bytes) -> None:
        """Writes a file of the sandbox, making its parents."""
        await self._with_files(lambda files: files.write(path, data))

    async def _with_files(self, work: Callable[[Rooted], T]) -> T:
        view = view_of(await self.check(), self._state, self._image)
        try:
            return await asyncio.to_thread(lambda: work(view.files))
        except OSError:
            await self.check()  # an end takes the files away too
            raise

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


def view_of(record: Record, state: State, image: PreparedImage) -> View:
    """What the processes of a sandbox see."""
    if record.private:
        return CellView(record.holder, image, record.pids, record.groups)
    return SharedView(state.root(record.id), image, record.groups)


def _cannot(code: int, why: str) -> ExecResult:
    return ExecResult(code, b"", f"agent-env: {why}\n".encode())

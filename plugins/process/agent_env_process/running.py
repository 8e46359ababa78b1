"""What the process that created a sandbox holds for it: the ports, the main process, and its output."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from agent_env_core.errors import Gone, ImageError, Unavailable
from agent_env_process.cells import holder_of, holder_pid
from agent_env_process.cgroups import hurry, overrun
from agent_env_process.environment import MARK
from agent_env_process.output import LogFile, tail
from agent_env_process.ports import HeldPorts
from agent_env_process.procs import Known, end_all, end_namespace
from agent_env_process.spawn import Child
from agent_env_process.state import Record, State
from agent_env_process.views import CannotRun, View

OPENING = 30.0
"""Seconds that namespaces may take to open, on a machine where hundreds start at once."""

WITHOUT_HOLDER = "the process that held its namespaces ended: killed, or with the process that made the sandbox"


class Running:
    """A sandbox of this process.

    Args:
        record: As it stands on disk.
        state: Where that is.
        ports: Held until :meth:`close`.
    """

    def __init__(self, record: Record, state: State, ports: HeldPorts) -> None:
        self._record, self._state, self._ports = record, state, ports
        self._main: Child | None = None
        self._cell: Child | None = None
        self._log: LogFile | None = None
        self._ending: asyncio.Task[None] | None = None
        self.end: str | None = None
        """How it ended; None while it runs."""

    @property
    def leaders(self) -> tuple[Known | None, ...]:
        """The processes that everything in it comes from, as far as they were started."""
        return tuple(child.known for child in (self._cell, self._main) if child is not None)

    async def open_cell(self, command: Sequence[str]) -> Record:
        """Opens the sandbox's namespaces.

        Args:
            command: Opens and holds them; see :func:`agent_env_process.cells.hold_command`.

        Returns:
            The record, which names their holder from now on.

        Raises:
            Unavailable: They can't be opened.
            Gone: Somebody killed the sandbox meanwhile.
        """
        said, ready = bytearray(), asyncio.Event()

        def listen(data: bytes) -> None:
            said.extend(data)
            if holder_pid(bytes(said)) is not None:
                ready.set()

        environment = {"PATH": os.environ.get("PATH", os.defpath), MARK: self._record.id}
        self._cell = Child(command, env=environment, cwd=Path("/"), stdout=listen)
        self._cell.exited.add_done_callback(lambda _: ready.set())
        await self._cell.connect()
        try:
            async with asyncio.timeout(OPENING):
                await ready.wait()
        except TimeoutError:
            raise Unavailable(f"process: namespaces did not open within {OPENING:g} s: {bytes(said)!r}") from None
        if self._cell.code is not None:
            await self._cell.finish()
        self._keep(holder=holder_of(bytes(said)))
        self._cell.exited.add_done_callback(lambda _: self._follow_cell())
        return self._record

    async def start_main(self, argv: Sequence[str], view: View) -> None:
        """Starts the main process.

        Raises:
            ImageError: Its program doesn't exist or can't be run.
            Gone: Somebody killed the sandbox meanwhile.
        """
        record = self._record
        try:
            command, place = view.command(argv, record.env, record.workdir)
        except CannotRun as exc:
            raise ImageError(f"process: the main process can't start: {exc.why}") from None
        self._log = LogFile(self._state.log(record.id))
        self._main = Child(command, env=record.env, cwd=place, stdout=self._log.add)
        self._main.exited.add_done_callback(lambda _: self._follow_main())
        self._keep(main=self._main.known)
        await self._main.connect()

    def _keep(self, **changes: Known | None) -> None:
        record = self._state.update(self._record.id, **changes)
        if record is None:
            raise Gone(f"process: sandbox {self._record.id} was killed while it started")
        self._record = record

    def mark_ended(self, how: str) -> None:
        """From here on every call on the sandbox says that it is gone."""
        self.end = self.end or how

    def close(self) -> None:
        """Lets go of ports, pipes and the log. Idempotent."""
        self._ports.release()
        for child in (self._main, self._cell):
            if child is not None:
                child.close()
        if self._log is not None:
            self._log.close()

    async def settle(self) -> None:
        """Waits until the end of the main process, if it has ended, has taken its course."""
        if self._main is not None:
            self._main.look()
            self._follow_main()
        if self._cell is not None:
            self._cell.look()
            self._follow_cell()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _follow_main(self) -> None:
        """As in a container, the end of the main process is the end of everything in the sandbox."""
        if self._main is not None and self._main.code is not None and self._ending is None and self.end is None:
            self._ending = asyncio.create_task(self._end_with_main(self._main))

    def _follow_cell(self) -> None:
        """Where the main process ends too, it is the one that has something to say."""
        if self._cell is not None and self._cell.code is not None and self._main is None:
            self.mark_ended(WITHOUT_HOLDER + overrun(self._record.groups))

    async def _end_with_main(self, main: Child) -> None:
        await asyncio.to_thread(hurry, self._record.groups)
        if self._record.holder is not None:
            await asyncio.to_thread(end_namespace, self._record.holder)
        await asyncio.to_thread(end_all, f"{MARK}={self._record.id}", *self.leaders)
        code = await main.finish()  # nobody holds its output open any more, so all it said is there
        self.mark_ended(death(code, self._state.log(self._record.id), self._record.groups))


def death(code: int | None, log: Path, groups: Sequence[str]) -> str:
    """How a main process ended, with the end of its output; and whether memory ran out in its control groups."""
    how = (
        "ended" if code is None else f"was killed by signal {code - 128}" if code > 128 else f"exited with code {code}"
    )
    said = tail(log)
    return f"its main process {how}{overrun(groups)}; " + (f"it last said:\n{said}" if said else "it said nothing")

"""What the process that created a sandbox holds for it: the ports, the main process, and its output."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from agent_env_core.errors import Gone, ImageError
from agent_env_process.environment import MARK
from agent_env_process.output import LogFile, tail
from agent_env_process.ports import HeldPorts
from agent_env_process.procs import Known, end_all
from agent_env_process.spawn import Child, find_program
from agent_env_process.state import Record, State


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
        self._log: LogFile | None = None
        self._ending: asyncio.Task[None] | None = None
        self.end: str | None = None
        """How it ended; None while it runs."""

    @property
    def main(self) -> Known | None:
        """The main process, if it was started."""
        return self._main.known if self._main is not None else None

    async def start_main(self, argv: Sequence[str]) -> None:
        """Starts the main process.

        Raises:
            ImageError: Its program doesn't exist or can't be run.
            Gone: Somebody killed the sandbox meanwhile.
        """
        record = self._record
        program = find_program(argv[0], record.env["PATH"], Path(record.workdir))
        if program is None:
            raise ImageError(f"process: the main process can't start: the image has no program {argv[0]!r}")
        self._log = LogFile(self._state.log(record.id))
        self._main = Child([program, *argv[1:]], env=record.env, cwd=Path(record.workdir), stdout=self._log.add)
        self._main.exited.add_done_callback(lambda _: self._follow_main())
        if self._state.update(record.id, main=self._main.known) is None:
            raise Gone(f"process: sandbox {record.id} was killed while it started")
        await self._main.connect()

    def mark_ended(self, how: str) -> None:
        """From here on every call on the sandbox says that it is gone."""
        self.end = self.end or how

    def close(self) -> None:
        """Lets go of ports, pipes and the log. Idempotent."""
        self._ports.release()
        if self._main is not None:
            self._main.close()
        if self._log is not None:
            self._log.close()

    async def settle(self) -> None:
        """Waits until the end of the main process, if it has ended, has taken its course."""
        if self._main is not None:
            self._main.look()
            self._follow_main()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _follow_main(self) -> None:
        """As in a container, the end of the main process is the end of everything in the sandbox."""
        if self._main is not None and self._main.code is not None and self._ending is None and self.end is None:
            self._ending = asyncio.create_task(self._end_with_main(self._main))

    async def _end_with_main(self, main: Child) -> None:
        await asyncio.to_thread(end_all, f"{MARK}={self._record.id}")
        code = await main.finish()  # nobody holds its output open any more, so all it said is there
        self.mark_ended(death(code, self._state.log(self._record.id)))


def death(code: int | None, log: Path) -> str:
    """How a main process ended, with the end of its output."""
    how = (
        "ended" if code is None else f"was killed by signal {code - 128}" if code > 128 else f"exited with code {code}"
    )
    said = tail(log)
    return f"its main process {how}; " + (f"it last said:\n{said}" if said else "it said nothing")

"""How many sandboxes may be starting, and how many may run, at once; and how many may be created in a second.

Starting is what costs CPU; running mostly costs memory. So they are two limits. A host that :func:`open_host` opened
shares both with all processes of this user on this machine (see :mod:`agent_env_core.sandbox.slots`); sandboxes that
run elsewhere are counted for each provider apart.

Set by the environment: ``AGENT_ENV_MAX_STARTING``, ``AGENT_ENV_MAX_RUNNING``, ``AGENT_ENV_CREATES_PER_SECOND``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox.machine import process_is_stopped
from agent_env_core.sandbox.slots import Pace, Slot, Slots, Ticket

log = logging.getLogger(__name__)

STARTING_VARIABLE = "AGENT_ENV_MAX_STARTING"
RUNNING_VARIABLE = "AGENT_ENV_MAX_RUNNING"
RATE_VARIABLE = "AGENT_ENV_CREATES_PER_SECOND"

REMOTE_STARTING = 64
"""Sandboxes that may be starting at once where they start on other machines."""

FIRST_LOOK, LOOK_EACH = 0.010, 0.0002
"""Seconds between two looks of the one caller of a process that stands in the machine's queue: 10 ms, and more where
there are many places to look at."""


TELL_AFTER = 30.0
"""Seconds after which somebody who waits is told for whom: a process that was stopped keeps what it holds."""


def default_starting(*, remote: bool = False) -> int:
    """Four times the cores this process may use; where sandboxes start on other machines, 64.

    Starting mixes CPU with waiting, and a machine has other work too, with which as many compete as are starting.
    """
    if remote:
        return REMOTE_STARTING
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 4 * usable


Free = Callable[[], None]
"""Gives one place back; called once."""


class Count(Protocol):
    """Places of one kind, and a queue for them."""

    async def take(self) -> Free:
        """Waits for a place, first come, first served. Cancelling it leaves nothing."""

    def spare(self) -> Free | None:
        """A place that nobody waits for, now; None where there is none."""

    def wanted(self) -> bool:
        """Whether somebody waits."""


class OwnCount:
    """Places of this process alone.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> Free:
        """See :meth:`Count.take`."""
        if (free := self.spare()) is not None:
            return free
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn  # who frees a place hands it over, so it is never seen free in between
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free()
            else:
                self._waiting.remove(turn)
            raise
        return self._free

    def spare(self) -> Free | None:
        """See :meth:`Count.spare`."""
        if not self._left or self.wanted():
            return None
        self._left -= 1
        return self._free

    def wanted(self) -> bool:
        """See :meth:`Count.wanted`."""
        return any(not turn.done() for turn in self._waiting)

    def _free(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._left += 1


class SharedCount:
    """Places that the processes of this machine share. One caller of this process at a time stands in their queue.

    Args:
        slots: The places.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    async def take(self) -> Free:
        """See :meth:`Count.take`.

        Raises:
            Unavailable: The places can't be looked at.
        """
        async with self._turn:
            slot = self._slots.take()
            if slot is None:
                ticket = self._slots.queue()
                try:
                    slot = await self._first(ticket)
                finally:
                    ticket.close()
            return self._held(slot)

    async def _first(self, ticket: Ticket) -> Slot:
        pause = FIRST_LOOK + LOOK_EACH * self._slots.count
        told = time.monotonic() + TELL_AFTER
        while (slot := self._slots.take(ticket)) is None:
            if time.monotonic() > told:
                log.warning("waiting for a place in %s, held by %s", self._slots.folder, _words(self._slots.holders()))
                told = float("inf")
            self._news.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._news.wait()
            except TimeoutError:
                continue
        return slot

    def spare(self) -> Free | None:
        """See :meth:`Count.spare`."""
        slot = None if self._turn.locked() else self._slots.take()
        return None if slot is None else self._held(slot)

    def wanted(self) -> bool:
        """See :meth:`Count.wanted`."""
        return self._turn.locked() or self._slots.wanted()

    def _held(self, slot: Slot) -> Free:
        def free() -> None:
            slot.free()
            self._news.set()

        return free


class Place:
    """Room for one sandbox: to run, for as long as it exists; and to start, until it is ready.

    Attributes:
        used: A create has it, and sees to its end.
        creating: That create is under way.
        patient: A provider that is at its own limit is asked again.
    """

    def __init__(self, starting: Count, running: list[Free], start: Free, *, patient: bool = True) -> None:
        self._starting, self._running, self.patient = starting, running, patient
        self._start: Free | None = start
        self.used = self.creating = False

    async def start(self) -> None:
        """Counts as starting, once there is room; at first it does."""
        if self._start is None:
            self._start = await self._starting.take()

    def started(self) -> None:
        """No longer counts as starting. Idempotent."""
        start, self._start = self._start, None
        if start is not None:
            start()

    def free(self) -> None:
        """Gives everything back. Idempotent."""
        self.started()
        running, self._running = self._running, []
        for free in reversed(running):
            free()

    def leave(self) -> None:
        """For who took it, at the end of the start: what it holds beyond a running sandbox is given back."""
        if not self.used:
            self.free()
        elif not self.creating:
            self.started()


class Limits:
    """The limits of one host.

    Args:
        max_starting: Sandboxes that may be starting at once; by default :func:`default_starting`.
        max_running: Sandboxes of this host that may exist at once; None sets no limit.
        shared: A folder, whose places all processes of this machine share; without it, they are this host's own.
        remote: Sandboxes run on other machines.
        per_second: Creates in a second that the provider's account allows; None sets no limit.

    Raises:
        ValueError: A limit is below one.
        ConfigError: A variable of the environment holds no such number.
    """

    def __init__(
        self,
        max_starting: int | None = None,
        max_running: int | None = None,
        *,
        shared: Path | None = None,
        remote: bool = False,
        per_second: float | None = None,
    ) -> None:
        for name, value in (("max_starting", max_starting), ("max_running", max_running)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1; leave it out for the default")
        machines = None
        if shared is not None:
            max_starting = max_starting or _number(STARTING_VARIABLE)
            machines, per_second = _number(RUNNING_VARIABLE), _rate(RATE_VARIABLE) or per_second
        self.max_starting = max_starting or default_starting(remote=remote)
        self.max_running = max_running
        self._starting: Count = OwnCount(self.max_starting)
        self._running: list[Count] = [] if max_running is None else [OwnCount(max_running)]
        self._pace: Pace | None = None
        if shared is not None:
            self._starting = SharedCount(Slots(shared / "starting", self.max_starting))
            if machines is not None:
                self._running.append(SharedCount(Slots(shared / "running", machines)))
            if per_second is not None:
                self._pace = Pace(shared / "pace", per_second)

    async def place(self) -> Place:
        """Waits for room to run, then for room to start. Cancelling it leaves nothing.

        Raises:
            Unavailable: Places that are shared can't be looked at.
        """
        running: list[Free] = []
        try:
            for count in self._running:
                running.append(await count.take())
            return Place(self._starting, running, await self._starting.take())
        except BaseException:
            for free in reversed(running):
                free()
            raise

    def spare_place(self) -> Place | None:
        """Room that nobody else waits for, now; None where there is none."""
        taken: list[Free] = []
        for count in (*self._running, self._starting):
            if (free := count.spare()) is None:
                for back in reversed(taken):
                    back()
                return None
            taken.append(free)
        return Place(self._starting, taken[:-1], taken[-1], patient=False)

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for room to run."""
        return any(count.wanted() for count in self._running)

    async def pace(self) -> None:
        """Waits until the next create may begin."""
        if self._pace is not None and (seconds := self._pace.next()) > 0:
            await asyncio.sleep(seconds)


def check_environment() -> None:
    """Reads the limits that the environment sets, so that a wrong one is told before any episode needs it.

    Raises:
        ConfigError: A variable holds no such number.
    """
    _number(STARTING_VARIABLE)
    _number(RUNNING_VARIABLE)
    _rate(RATE_VARIABLE)


def _words(pids: list[int]) -> str:
    return ", ".join(f"process {pid}{' (STOPPED)' if process_is_stopped(pid) else ''}" for pid in pids) or "nobody"


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"{variable}={text} must be a whole number of sandboxes, at least 1; unset it for the default"
        )
    return int(text)


def _rate(variable: str) -> float | None:
    text = os.environ.get(variable, "").strip()
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise ConfigError(f"{variable}={text} must be a number above 0; unset it for none")
    return rate

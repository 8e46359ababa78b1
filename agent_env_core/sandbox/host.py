"""What stands between the engine and a provider: leases, limits, retries, and teardown on every way out.

A provider stays simple because this module does the rest once for all of them: a create that is cancelled leaks
nothing, a kill that fails is tried again, a process that is killed is cleaned up after, and closing names what is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Coroutine, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agent_env_core.errors import Busy, ConfigError, Unavailable, describe
from agent_env_core.sandbox.builds import Builds
from agent_env_core.sandbox.contract import Image, Sandbox, SandboxProvider, SandboxSpec, refuse_unsupported
from agent_env_core.sandbox.creates import Creates
from agent_env_core.sandbox.leases import OWNER_LABEL, RUN_LABEL, Owner, reap
from agent_env_core.sandbox.limits import Limits, Place
from agent_env_core.sandbox.reaper import ReaperProcess
from agent_env_core.sandbox.renewal import Renewals

log = logging.getLogger(__name__)
T = TypeVar("T")

UNDO_BUDGET = 120.0
"""Seconds a create that was given up may go on, to be undone when it ends; then it is cancelled and looked for."""

DESTROY_BUDGET = 60.0
"""Seconds :meth:`SandboxHost.destroy` keeps its caller waiting; the tries go on behind."""

CLOSE_BUDGET = 120.0
"""Seconds :meth:`SandboxHost.aclose` takes at most before it names what is left."""

KILL_TIMEOUT = 30.0
"""Seconds one try to end a sandbox may take."""


class SandboxHost:
    """Creates and ends sandboxes of one provider for one run, on one event loop.

    Use it as an async context manager, or call :meth:`start` and :meth:`aclose`.

    Args:
        provider: The provider; it is closed with the host.
        run_id: Names the run in every lease; made up by default.
        max_starting: See :class:`~agent_env_core.sandbox.limits.Limits`.
        max_running: See :class:`~agent_env_core.sandbox.limits.Limits`.
        reaper: The name and the settings by which another process makes the same provider;
            :func:`~agent_env_core.sandbox.choose.open_host` gives them. Without them no reaper process runs, and what a
            killed process leaves waits for the next host's start.
        shared: The folder in which this machine's processes share their limits; without it the limits are the host's
            own.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        run_id: str | None = None,
        max_starting: int | None = None,
        max_running: int | None = None,
        reaper: tuple[str, Mapping[str, Any]] | None = None,
        shared: Path | None = None,
    ) -> None:
        self._provider = provider
        self._run_id = run_id or uuid.uuid4().hex[:12]
        self._owner = Owner.current()
        self._asked = max_starting, max_running
        self._shared = shared
        self._reaper = ReaperProcess(*reaper, self._owner, self._run_id) if reaper else None
        self._keeping: asyncio.Task[None] | None = None
        self._live: dict[str, Place] = {}
        self._creating: set[asyncio.Task[Sandbox]] = set()
        self._ending: dict[str, asyncio.Task[bool]] = {}
        self._behind: set[asyncio.Task[Any]] = set()
        self._builds = Builds(provider)
        self._renewals = Renewals()
        self._closed = False

    @cached_property
    def _limits(self) -> Limits:  # at the first use: what a provider can do may take a look at the machine
        can = self._provider.capabilities
        shared = None
        if self._shared is not None:  # what runs elsewhere costs this machine nothing
            shared = self._shared / (self._provider.name if can.remote else "here")
        return Limits(*self._asked, shared=shared, remote=can.remote, per_second=can.creates_per_second)

    @cached_property
    def _creates(self) -> Creates:
        return Creates(self._provider, self._limits, self._owner, self._run_id, self._builds, self._refuse_closed)

    @property
    def provider(self) -> SandboxProvider:
        """Whose sandboxes these are."""
        return self._provider

    @property
    def run_id(self) -> str:
        """The run's name, as its leases carry it."""
        return self._run_id

    @property
    def live(self) -> int:
        """How many sandboxes of this host exist, those under way in either direction included."""
        return len(self._live) + len(self._creating)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that all sandboxes of this host carry, and no others do."""
        return {RUN_LABEL: self._run_id, OWNER_LABEL: str(self._owner)}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- life

    async def start(self) -> None:
        """Starts the reaper process and ends what dead owners left on this machine. Neither is waited for long.

        Raises:
            ConfigError: The provider can't be used here.
        """
        if self._reaper is not None:
            try:
                self._reaper.start()
                self._keeping = asyncio.create_task(self._reaper.keep())
                self._keeping.add_done_callback(_warn_unarmed)
            except OSError as exc:
                log.warning("no reaper process (%s): sandboxes outlive this process if it is killed", exc)
        try:
            reaped = await reap(self._provider)
        except (ConfigError, asyncio.CancelledError):  # nothing was made
            await self._stop_reaper(clean=True)
            raise
        except Exception as exc:  # the provider may be back when it is needed
            log.warning("%s: can't look for leftovers of dead runs: %s", self._provider.name, describe(exc))
            return
        for sandbox_id, reason in reaped.killed.items():
            log.info("%s: ended leftover sandbox %s: %s", self._provider.name, sandbox_id, reason)
        for sandbox_id, reason in reaped.failed.items():
            log.warning("%s: can't end leftover sandbox %s: %s", self._provider.name, sandbox_id, reason)

    async def aclose(self) -> list[str]:
        """Ends all sandboxes of this host, lets go of the provider and sends the reaper away. Idempotent.

        Creates that are under way are finished and undone. The whole takes at most ``CLOSE_BUDGET`` seconds.

        Returns:
            The ids of sandboxes that could not be ended; they are logged, and left to the reaper.
        """
        if self._closed:
            return []
        self._closed = True
        ends = time.monotonic() + CLOSE_BUDGET
        try:
            survivors, sure = await self._end_all(ends)
        finally:
            left = {*self._creating, *self._behind, *self._ending.values()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await self._stop_reaper(clean=sure and not survivors)
        try:
            await self._provider.aclose()
        except Exception as exc:
            log.warning("%s: closing failed: %s", self._provider.name, describe(exc))
        for sandbox_id in survivors:
            log.error("%s: could not end sandbox %s; it is left to the reaper", self._provider.name, sandbox_id)
        return survivors

    async def _end_all(self, ends: float) -> tuple[list[str], bool]:
        """Ends what is known, then what the provider lists beyond that; says what is left, and whether that is all."""
        await self._builds.aclose()
        await self._renewals.aclose()
        while pending := {*self._creating, *self._behind, *(self._end(sandbox_id) for sandbox_id in self._live)}:
            done, _ = await asyncio.wait(pending, timeout=max(0.0, ends - time.monotonic()))
            if done != pending:
                break
            await asyncio.sleep(0)  # lets a create that has just come back be undone
        left, sure = set(self._live), not self._creating
        try:
            async with asyncio.timeout(max(1.0, ends - time.monotonic())):
                strays = await reap(self._provider, self.labels, why=lambda _: "its host is closing")
                left = (left - set(strays.killed)) | set(strays.failed)
        except Exception as exc:  # then what is known stands
            if left or not isinstance(exc, ConfigError):  # that it can't be used at all was told when it was asked for
                log.warning("%s: can't look for what is left: %s", self._provider.name, describe(exc))
            sure = False
        return sorted(left), sure

    async def _stop_reaper(self, *, clean: bool) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._reaper is not None:
            if clean:
                await self._reaper.stop()
            else:
                self._reaper.release()

    # -- images

    async def prepare(self, image: Image) -> str:
        """Prepares an image; callers that ask for one at the same time share the work.

        The build is stopped when the last of them is cancelled.

        Raises:
            ImageError: See :meth:`SandboxProvider.prepare`.
        """
        self._refuse_closed()
        return await self._answer(self._builds.get(image))

    # -- creating

    async def place(self) -> Place:
        """Waits for room for one more sandbox, to run and to start, and takes it.

        For who starts a server in a sandbox: it counts as starting until :meth:`~Place.leave`, the caller's last word,
        says that the server is ready or isn't going to be.

        Raises:
            Unavailable: This host is closing, or the machine's places can't be looked at.
        """
        self._refuse_closed()
        return await self._limits.place()

    def spare_place(self) -> Place | None:
        """Room that nobody waits for, here or in another process that shares it, at this moment."""
        return None if self._closed else self._limits.spare_place()

    @property
    def crowded(self) -> bool:
        """Whether somebody, here or in another process that shares the limit, waits for room to run."""
        return self._limits.wanted or self._creates.refused

    @property
    def max_starting(self) -> int:
        """How many sandboxes may be starting at once."""
        return self._limits.max_starting

    async def create(self, spec: SandboxSpec, *, place: Place | None = None) -> Sandbox:
        """Creates a sandbox with a lease, once there is room for it.

        A caller that is cancelled, by a deadline say, leaves nothing: what the provider had begun is finished and
        undone behind. A provider that is at its own limit is asked again; see :mod:`~agent_env_core.sandbox.creates`.

        Args:
            spec: What to create.
            place: Room that :meth:`place` gave; this call takes it over. Without it, room is waited for.

        Raises:
            Unsupported: The provider can't do what ``spec`` asks.
            SandboxError: As the provider raises it; nothing is left.
        """
        self._refuse_closed()
        refuse_unsupported(self._provider.name, self._provider.capabilities, spec)
        ours, room = place is None, place or await self._limits.place()
        room.used = room.creating = True
        mark = uuid.uuid4().hex
        task: asyncio.Task[Sandbox] | None = None
        try:
            self._refuse_closed()
            task = _track(self._creating, self._make(spec, room, mark))
            sandbox = await self._answer(asyncio.shield(task))
            self._refuse_closed()
        except BaseException as exc:
            self._undo(task, room, mark, exc)
            raise
        room.creating = False
        if ours:
            room.started()
        return sandbox

    async def _make(self, spec: SandboxSpec, room: Place, mark: str) -> Sandbox:
        sandbox = await self._creates.create(spec, room, mark)
        self._live[sandbox.id] = room  # here, so that there's no moment at which nobody counts it
        return sandbox

    def _undo(self, task: asyncio.Task[Sandbox] | None, room: Place, mark: str, why: BaseException) -> None:
        """After a failed or cancelled create: ends what comes of ``task``, behind, then gives its room back."""

        async def undo(task: asyncio.Task[Sandbox]) -> None:
            try:
                if not (await asyncio.wait({task}, timeout=UNDO_BUDGET))[0]:
                    task.cancel()
                    await asyncio.wait({task})
                    await self._creates.sweep(mark)
            finally:
                if (sandbox := _made(task)) is None:
                    room.free()
            if sandbox is not None:
                await self._end(sandbox.id)

        if task is None or (task.done() and _made(task) is None):
            room.free()
        else:
            log.debug("a create was given up (%s); its sandbox is ended as soon as it exists", describe(why))
            _track(self._behind, undo(task))

    def keep(self, sandbox: Sandbox, ttl: float) -> None:
        """Renews a lease to ``ttl`` seconds for as long as the sandbox isn't ended here, where the provider can."""
        needed = sandbox.id in self._live and sandbox.id not in self._ending
        if self._provider.capabilities.extend and needed:
            self._renewals.keep(sandbox, ttl)

    # -- ending

    async def destroy(self, sandbox_id: str) -> bool:
        """Ends a sandbox and gives its running place back. Idempotent, and safe to cancel: the work goes on.

        Returns:
            Whether there was one to end.

        Raises:
            Unavailable: It still stands after ``DESTROY_BUDGET`` seconds; the tries go on behind.
        """
        task = self._end(sandbox_id)
        done, _ = await asyncio.wait({task}, timeout=DESTROY_BUDGET)
        if not done:
            raise Unavailable(
                f"{self._provider.name}: sandbox {sandbox_id} could not be ended within {DESTROY_BUDGET:g} s; "
                "trying goes on, and the reaper has it when this process ends"
            )
        return task.result()

    def _end(self, sandbox_id: str) -> asyncio.Task[bool]:
        """The one task that ends this sandbox, trying until it has."""
        self._renewals.stop(sandbox_id)
        task = self._ending.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._kill_until_gone(sandbox_id), name=f"end {sandbox_id}")
            self._ending[sandbox_id] = task
            task.add_done_callback(lambda _: self._ending.pop(sandbox_id, None))
        return task

    async def _kill_until_gone(self, sandbox_id: str) -> bool:
        pause = 0.1
        while True:
            try:
                async with asyncio.timeout(KILL_TIMEOUT):
                    existed = await self._provider.kill(sandbox_id)
                break
            except Exception as exc:
                wait = exc.retry_after if isinstance(exc, Busy) else pause
                log.debug("%s: ending %s failed, again in %.1f s: %s", self._provider.name, sandbox_id, wait, exc)
            await asyncio.sleep(wait)
            pause = min(2 * pause, 10.0)
        if (room := self._live.pop(sandbox_id, None)) is not None:
            room.free()
        return existed

    # -- small parts

    async def _answer(self, work: Awaitable[T]) -> T:
        """What ``work`` gives; that closing this host stopped it is said, not passed off as the caller's cancelling."""
        try:
            return await work
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is None or not caller.cancelling():
                self._refuse_closed()
            raise

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._provider.name}: this host is closing and makes nothing more")


def _track(group: set[asyncio.Task[T]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Runs ``work`` as a task that ``group`` holds until it is done."""
    task = asyncio.create_task(work)
    group.add(task)
    task.add_done_callback(group.discard)
    return task


def _made(task: asyncio.Task[Sandbox]) -> Sandbox | None:
    """What a create has come to, where it has and it's a sandbox."""
    return task.result() if task.done() and not task.cancelled() and task.exception() is None else None


def _warn_unarmed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        log.warning("%s", exc)

"""The way to the engine: one connection pool, threads for blocking calls, and what happens when a caller goes away.

A thread can't be cancelled. So a caller that is cancelled leaves a call that runs to its end, and whoever made the
call says how to undo it (see ``undo`` of :meth:`Engine.call`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from agent_env_core.errors import ConfigError, NotSetUp, Unavailable, describe
from agent_env_docker import limits, prereqs
from agent_env_docker.tunnel import Tunnel

if TYPE_CHECKING:
    from docker import APIClient

T = TypeVar("T")
logger = logging.getLogger("agent_env_docker")

CALLS = 64
"""Calls to the engine at once, and connections kept open for them. Each one is short; long work has its own thread."""


@dataclass(frozen=True)
class Known:
    """What an engine said of itself.

    Attributes:
        version: Its version, e.g. ``27.3.1``.
        host: Where it is, as ``DOCKER_HOST`` would say it.
        unkept: What it does not limit; see :mod:`agent_env_docker.limits`.
    """

    version: str
    host: str
    unkept: tuple[str, ...]

    def __str__(self) -> str:
        return f"Docker {self.version} at {self.host}; {limits.told(self.unkept)}"


class Engine:
    """The engine, reached when it is first needed.

    Args:
        timeout: Seconds of silence after which a call fails.

    Attributes:
        known: What it said of itself when it was reached; None before that.
    """

    def __init__(self, timeout: int) -> None:
        self.known: Known | None = None
        self._timeout = timeout
        self._client: APIClient | None = None
        self._tunnel: Tunnel | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="agent-env-docker")

    def client(self) -> APIClient:
        """The client; connects on the first call, so call it from a thread.

        Raises:
            ConfigError: No engine answers; the message says why, and what to do.
            Unavailable: The way to it has broken, and can't be put up again, or the provider was closed.
        """
        with self._lock:
            self._refuse_closed()
            if self._client is None:
                self._client = self._reach()
                self._tunnel = prereqs.engine_tunnel()
                if self._closed:  # meanwhile
                    self._client.close()
                    self._refuse_closed()
            elif self._tunnel is not None:
                try:
                    self._tunnel.engine()  # puts up again what has broken
                except OSError as exc:
                    raise Unavailable(f"docker: {prereqs.explain(exc)}") from exc
            return self._client

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Unavailable("docker: the provider was closed")

    def _reach(self) -> APIClient:
        client = self.connect(CALLS)
        try:
            info = client.info()
            self.known = Known(str(info.get("ServerVersion")), prereqs.engine_host(), limits.unkept(info))
        except Exception as exc:  # it may be no engine at all that answers
            client.close()
            raise Unavailable(f"docker: {prereqs.explain(exc)}") from exc
        if self.known.unkept:
            logger.warning("docker: this engine %s", limits.told(self.known.unkept))
        return client

    def connect(self, connections: int) -> APIClient:
        """Another client, for work that may have to be cut off; whoever asks for it closes it.

        Raises:
            ConfigError: As for :meth:`client`.
        """
        try:
            return prereqs.connect(timeout=self._timeout, connections=connections)
        except Exception as exc:
            kind = ConfigError if prereqs.set_up() else NotSetUp
            raise kind(f"docker: {prereqs.explain(exc)}") from exc

    async def call(self, work: Callable[[APIClient], T], *, undo: Callable[[APIClient, T], None] | None = None) -> T:
        """Runs a short piece of blocking work in a thread.

        Args:
            work: Given the client.
            undo: Takes back what ``work`` has made, in a thread too, where the caller was cancelled meanwhile.

        Raises:
            Unavailable: There is no thread to be had, or the provider was closed.
        """
        self._refuse_closed()
        if self._client is None:  # in a thread that may be left: a name look-up or an ssh login has no deadline
            await self.thread(lambda client: None)
        with _threads():
            job = self._calls.submit(lambda: work(self.client()))
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancel() and undo is not None:  # a thread has begun it
                job.add_done_callback(lambda done: self._undo(done, undo))
            raise

    def _undo(self, job: Future[T], undo: Callable[[APIClient, T], None]) -> None:
        if job.cancelled() or job.exception() is not None:
            return
        made = job.result()

        def work() -> None:
            try:
                undo(self.client(), made)
            except Exception as exc:  # its lease ends it then
                logger.warning("what a cancelled call made could not be taken back: %s", describe(exc))

        try:
            self._calls.submit(work)
        except RuntimeError:  # the provider was closed in the meantime
            work()

    def thread(self, work: Callable[[APIClient], T]) -> asyncio.Future[T]:
        """Runs long blocking work in a thread of its own, and gives a future that is safe to abandon.

        The thread is a daemon: work that hangs never keeps the process from ending.

        Raises:
            Unavailable: There is no thread to be had.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
                future.exception()  # nobody may be waiting any more
            else:
                future.set_result(result)  # type: ignore[arg-type]  # T may be None itself

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work(self.client())
            except BaseException as exc:
                error = exc
            try:
                loop.call_soon_threadsafe(deliver, result, error)
            except RuntimeError:  # the loop is closed: nobody waits
                return

        with _threads():
            threading.Thread(target=run, name="agent-env-docker-long", daemon=True).start()
        return future

    async def aclose(self) -> None:
        """Waits for the calls that run, and closes the connections."""
        await asyncio.to_thread(self._calls.shutdown, wait=True)
        self._closed = True
        if self._client is not None:
            self._client.close()


@contextmanager
def _threads() -> Iterator[None]:
    """What Python raises where a thread can't be started, as the contract has it."""
    try:
        yield
    except RuntimeError as exc:
        raise Unavailable(f"docker: no thread can be had for a call of the engine: {exc}") from exc

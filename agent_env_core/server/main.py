"""Runs a server until it's told to stop, and leaves nothing behind.

It stops on SIGTERM and Ctrl-C, and, when it was started by a trainer, once that is gone: its end of a pipe closes, or
the parent process is another one. Where several processes share a server, all of them have to close that pipe. However
it stops, episodes are abandoned and torn down before the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agent_env_core.errors import AgentEnvError, BundleError, EpisodeRefused, describe
from agent_env_core.sandbox.reaper import lives_for
from agent_env_core.server.limits import DEFAULT_SESSIONS
from agent_env_core.verifiers.walls import hide

if TYPE_CHECKING:
    from types import ModuleType

    from agent_env_core.server.catalog import Catalog, Path, Reward
    from agent_env_core.server.service import Service

logger = logging.getLogger(__name__)
T = TypeVar("T")

WATCH_SECONDS = 1.0
"""How often the parent is looked for besides the pipe, which a fork of the parent may still hold open."""
PING_SECONDS = 20.0
LINGER_SECONDS = 10


@dataclass(frozen=True)
class Settings:
    """How to serve.

    Attributes:
        bundle: A bundle's folder, or folders by split.
        reward: As for ``build_app``.
        sandbox: As for ``build_app``.
        max_concurrent_envs: As for ``build_app``.
        warm: As for ``build_app``.
        host: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        parent_fd: The reading end of a pipe whose other end the parent holds for as long as it lives.
        shared: Whether other processes than the parent hold that pipe too, and so may outlive it.
        ready_fd: Where to write progress and readiness as JSON lines; without it they go to standard error as text.
    """

    bundle: Path | Mapping[str, Path]
    reward: Reward = None
    sandbox: str | None = None
    max_concurrent_envs: int = DEFAULT_SESSIONS
    warm: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    parent_fd: int | None = None
    shared: bool = False
    ready_fd: int | None = None


class Teller:
    """Tells whoever started the server how far it is.

    Args:
        fd: Where to write JSON lines; None writes text to standard error.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def progress(self, text: str) -> None:
        """Says what takes long."""
        self._tell(text, event="progress", text=text)

    def read(self, catalog: Catalog) -> None:
        """Says what the bundle holds, before anything is built: whoever asks for what isn't there needn't wait."""
        splits = {split: len(tasks) for split, tasks in catalog.splits.items()}
        held = ", ".join(f"{split} ({count})" for split, count in splits.items())
        self._tell(f"read {catalog.name}: {held}", event="read", splits=splits, score_ids=list(catalog.score_ids))

    def ready(self, url: str, name: str) -> None:
        """Says that the server answers; nothing is told after it."""
        self._tell(f"serving {name} at {url}", event="ready", url=url, name=name, pid=os.getpid())
        self._close()

    def failed(self, exc: Exception) -> None:
        """Says why the server can't start; nothing is told after it."""
        told: dict[str, Any] = {"kind": type(exc).__name__, "text": str(exc) or describe(exc)}
        if isinstance(exc, BundleError | EpisodeRefused):
            told |= {"subject": exc.subject, "problems": [asdict(problem) for problem in exc.problems]}
        self._tell(f"can't serve: {told['text']}", event="failed", **told)
        self._close()

    def _tell(self, words: str, **line: Any) -> None:
        with contextlib.suppress(OSError):  # whoever listened is gone, and the pipe that is watched says so
            if self._fd is None:
                print(words, file=sys.stderr, flush=True)
            else:
                os.write(self._fd, json.dumps(line).encode() + b"\n")

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def serve(settings: Settings) -> int:
    """Serves until told to stop.

    Returns:
        The exit status: 0, or 1 when the server couldn't start or left something behind.
    """
    level = logging.INFO if settings.ready_fd is None else logging.WARNING  # a trainer's terminal is the trainer's
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    hide()  # its environment holds the token and the keys of models
    teller = Teller(settings.ready_fd)
    stop = Stop()
    with stop.listening(settings.parent_fd, shared=settings.shared):
        try:
            with _bound(settings.host, settings.port) as listener:
                return asyncio.run(_serve(settings, listener, teller, stop))
        except (AgentEnvError, ValueError, OSError) as exc:
            teller.failed(exc)
            return 1


class Stop:
    """The wish to stop, from wherever it comes. A second one while the first is being met ends the process at once."""

    def __init__(self) -> None:
        self.why = ""
        self._lock = threading.Lock()
        self._told: Callable[[], object] | None = None

    @contextlib.contextmanager
    def listening(self, parent_fd: int | None, *, shared: bool = False) -> Iterator[None]:
        """Listens to signals and to the parent; puts the signals back afterwards."""
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        if parent_fd is not None:
            parent = None if shared else os.getppid()
            if parent is not None:
                lives_for(parent)
            threading.Thread(target=self._watch, args=(parent_fd, parent), name="parent", daemon=True).start()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, frame: object) -> None:
        name = signal.Signals(number).name
        if self.why and number == signal.SIGINT:
            with contextlib.suppress(OSError):
                os.write(2, b"stopped again: what is left is ended by the reaper\n")
            os._exit(130)
        self.ask(name)

    def _watch(self, fd: int, parent: int | None) -> None:
        poll = select.poll()  # a trainer with many files open hands down a number that select() can't take
        poll.register(fd, select.POLLIN)
        with contextlib.suppress(OSError):
            while parent in (None, os.getppid()) and not poll.poll(WATCH_SECONDS * 1000):
                continue
            os.close(fd)  # nobody shall come to a server that ends
        self.ask("the trainer is gone")

    def ask(self, why: str) -> None:
        """Asks to stop, from any thread or a signal handler."""
        self.why = self.why or why
        told = self._told
        if told is not None:
            told()

    async def asked(self) -> None:
        """Waits until somebody asks."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so has what was to be stopped
                loop.call_soon_threadsafe(event.set)

        self._told = tell
        if not self.why:
            await event.wait()
        logger.info("stopping: %s", self.why)


async def _serve(settings: Settings, listener: socket.socket, teller: Teller, stop: Stop) -> int:
    stopped = asyncio.create_task(stop.asked())
    try:
        service = await _unless(stopped, _started(settings, teller))
        if service is None:
            return 0
        try:
            await _answer(service, settings, listener, teller, stopped)
        finally:
            left = await service.aclose()
        return 1 if left else 0
    finally:
        stopped.cancel()


async def _started(settings: Settings, teller: Teller) -> Service:
    from agent_env_core import integrity
    from agent_env_core.server.app import service_for

    integrity.check()
    teller.progress("starting the server")
    service = await asyncio.to_thread(
        service_for,
        settings.bundle,
        reward=settings.reward,
        sandbox=settings.sandbox,
        max_concurrent_envs=settings.max_concurrent_envs,
        warm=settings.warm,
        on_progress=teller.progress,
    )
    teller.read(service.catalog)
    importing = asyncio.create_task(asyncio.to_thread(_import_openenv))  # beside the start: both take seconds
    await service.start()
    try:
        await importing
    except BaseException:
        await service.aclose()
        raise
    return service


def _import_openenv() -> None:
    """Imports OpenEnv without Gradio: two thirds of the time and 120 MB, for a web interface that isn't served here.

    OpenEnv does without it where it isn't installed. Only a process of our own may be told so for a moment.
    """
    from agent_env_core.server.app import require_packages

    modules = cast("dict[str, ModuleType | None]", sys.modules)  # None there makes an import fail as a missing one does
    modules.setdefault("gradio", None)
    try:
        require_packages()
    finally:
        if modules["gradio"] is None:
            del modules["gradio"]


async def _unless(stopped: asyncio.Task[None], work: Coroutine[Any, Any, T]) -> T | None:
    """The outcome of ``work``; None when the server is to stop first, and ``work`` is undone then."""
    task = asyncio.create_task(work)
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
        return None
    return task.result()


async def _answer(
    service: Service, settings: Settings, listener: socket.socket, teller: Teller, stopped: asyncio.Task[None]
) -> None:
    """Answers requests until the server is to stop."""
    import uvicorn

    from agent_env_core.server.app import app_of
    from agent_env_core.server.auth import TOKEN_VARIABLE

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield  # they are ours

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            teller.ready(_url(listener), service.catalog.name)

    config = uvicorn.Config(
        app_of(service),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",  # the service is started and closed here, where stopping can cut a start short
        ws_per_message_deflate=False,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PING_SECONDS,
        timeout_graceful_shutdown=LINGER_SECONDS,
    )
    server = Server(config)
    if settings.host not in ("127.0.0.1", "::1", "localhost") and not os.environ.get(TOKEN_VARIABLE):
        logger.warning("%s is open to all who can reach it: set %s to ask for a token", _url(listener), TOKEN_VARIABLE)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait({answering, stopped}, return_when=asyncio.FIRST_COMPLETED)
    for session in service.sessions.all():
        session.abandon("the server is shutting down")  # so that nobody waits for a call under way
    server.should_exit = True
    await answering


@contextlib.contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound and doesn't listen yet: a port in use is told at once, and nobody waits in a queue."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as exc:
        of_the_host = isinstance(exc, socket.gaierror) or exc.errno == errno.EADDRNOTAVAIL
        fix = "name an address of this machine" if of_the_host else "choose another port, or 0 for a free one"
        raise AgentEnvError(f"can't listen on {host}:{port}: {exc}; {fix}") from exc
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

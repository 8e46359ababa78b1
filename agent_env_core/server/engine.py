"""The one event loop that all episodes of a server run on, in a thread of its own.

OpenEnv gives each session a thread and the app a loop of its own. Neither may hold an episode: a session's thread waits
for its environment, and the app's loop answers everybody. So an engine runs beside them, and they hand it coroutines.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env_core.envs.warm import default_warm
from agent_env_core.errors import EpisodeError, Phase
from agent_env_core.play.runner import Runner
from agent_env_core.sandbox.choose import DEFAULT_PROVIDER, start_host
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.server.catalog import Catalog, sandboxes_of

if TYPE_CHECKING:
    from pathlib import Path

    from agent_env_core.play.episode import Episode
    from agent_env_core.play.spec import EpisodeSpec
    from agent_env_core.server.rollout import Rollout

logger = logging.getLogger(__name__)
T = TypeVar("T")

CLOSE_SECONDS = 420.0
"""How long a server's close may take before it names what is left."""
SPARE = 4
"""Sandboxes that may stand beyond those of all sessions: teardown goes on behind an answer, and is counted."""


class Engine:
    """Runs the episodes of a catalog. Made before a loop runs; it owns nothing until :meth:`start`.

    Args:
        catalog: What is served.
        sandbox: A sandbox provider's name, several with commas, or a host that somebody else starts and closes; None is
            Docker.
        sessions: How many sessions the server allows.
        warm: How many deployments to make ahead, of all bundles together; None takes what suits the sessions and this
            machine, and none where sandboxes run elsewhere, and cost money.
        on_progress: Told in words what takes long.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        sandbox: str | SandboxHost | None = None,
        sessions: int = 8,
        warm: int | None = None,
        on_progress: Callable[[str], None] = logger.info,
    ) -> None:
        self._catalog = catalog
        self._sandbox = sandbox
        self._sessions = sessions
        self._warm = warm
        self._on_progress = on_progress
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._host: SandboxHost | None = None
        self._runners: dict[Path, Runner] = {}
        self._rollouts: set[Rollout] = set()
        self._behind: set[asyncio.Task[Any]] = set()

    # -- life, called on the app's loop

    async def start(self) -> frozenset[str]:
        """Starts the loop, opens the sandbox provider, prepares every image. Idempotent; cancelling it undoes it.

        Returns:
            The ids of tasks that can't be played here.
        """
        if self._loop is not None:
            return self._left_out
        loop = asyncio.new_event_loop()
        self._loop = loop
        self._thread = threading.Thread(target=self._main, args=(loop,), name="agent-env-engine", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._open(), loop))
        except BaseException:
            await self.aclose()
            raise
        return self._left_out

    @property
    def _left_out(self) -> frozenset[str]:
        return frozenset(task_id for runner in self._runners.values() for task_id in runner.left_out)

    @staticmethod
    def _main(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        with contextlib.suppress(RuntimeError):  # an executor's thread that hangs must not keep the process
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    async def _open(self) -> None:
        host = self._sandbox
        if not isinstance(host, SandboxHost):
            each = max(sandboxes_of(served.task) for served in self._catalog.served)
            most = (self._sessions + SPARE) * each + (self._default_warm if self._warm is None else self._warm)
            host = self._host = await start_host(host, max_running=most, on_progress=self._on_progress)
        for bundle, warm in zip(self._catalog.bundles, self._shares(host), strict=True):
            specs = [one.spec for one in self._catalog.served if one.task.bundle.root == bundle.root]
            runner = Runner(bundle, sandbox=host, specs=specs, warm=warm, on_progress=self._on_progress)
            self._runners[bundle.root] = runner
            await runner.start()

    @property
    def _default_warm(self) -> int:
        return default_warm(self._sessions)

    def _shares(self, host: SandboxHost) -> list[int]:
        """How many deployments are made ahead of each bundle."""
        remote = host.provider.capabilities.remote
        warm = (0 if remote else self._default_warm) if self._warm is None else self._warm
        each, more = divmod(warm, len(self._catalog.bundles))
        return [each + (number < more) for number in range(len(self._catalog.bundles))]

    async def aclose(self, seconds: float = CLOSE_SECONDS) -> list[str]:
        """Abandons every episode, tears it down, and ends the loop. Takes at most ``seconds``, about.

        Returns:
            What is left, in words; empty when nothing is. It is logged too.
        """
        loop, thread = self._loop, self._thread
        self._loop = None
        if loop is None or thread is None:
            return []
        closing = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._wind_up(seconds), loop))
        try:
            left = await asyncio.wait_for(closing, seconds + 10)
        except TimeoutError:
            left = ["everything: the engine's loop is blocked; the reaper ends the sandboxes"]
        for line in left:
            logger.error("left behind: %s", line)
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join, 5)
        return left

    async def _wind_up(self, seconds: float) -> list[str]:
        for rollout in list(self._rollouts):
            rollout.abandon("the server is shutting down")
        left: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                for runner in self._runners.values():
                    await runner.aclose()
                if self._host is not None:
                    left = [f"sandbox {sandbox_id}" for sandbox_id in await self._host.aclose()]
        except TimeoutError:
            count = self._host.live if self._host is not None else 0
            left = [f"{count} sandboxes, after {seconds:g}s of tearing down; the reaper ends them"]
        except Exception as exc:
            logger.exception("closing failed")
            left = [f"whatever the close didn't reach: {exc}"]
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=2)
        return left

    # -- work, from any thread

    def call(self, work: Coroutine[Any, Any, T], *, seconds: float, phase: Phase) -> T:
        """Runs ``work`` on the engine's loop and waits for it.

        Args:
            work: What to run. It keeps its own deadline; this one is for a loop that hangs.
            seconds: How long to wait.
            phase: What an episode is doing meanwhile.

        Raises:
            EpisodeError: The engine isn't running, or doesn't answer.
        """
        if self._loop is None:
            work.close()
            raise EpisodeError(
                "queue", "the server isn't running: it is shutting down, or its app's lifespan was never started"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # it was the work's own
            future.cancel()
            raise EpisodeError(phase, f"the server's engine didn't answer within {seconds:g}s") from None
        except concurrent.futures.CancelledError:
            raise EpisodeError(phase, "the server is shutting down", retryable=True) from None

    def post(self, what: Callable[[], object]) -> None:
        """Has ``what`` called on the engine's loop, soon; nothing happens when the engine isn't running."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(what)

    # -- work, on the engine's loop

    async def play(self, spec: EpisodeSpec) -> Episode:
        """Starts an episode."""
        return await spec.start(self._runners[spec.task.bundle.root])

    def behind(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Lets ``work`` go on behind an answer; a failure of it is logged."""
        task = asyncio.get_running_loop().create_task(work, name=what)
        self._behind.add(task)
        task.add_done_callback(self._ended_behind)

    def _ended_behind(self, task: asyncio.Task[Any]) -> None:
        self._behind.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None:
            logger.warning("%s failed: %s", task.get_name(), exc)

    def watch(self, rollout: Rollout) -> None:
        """Has ``rollout`` abandoned when the server shuts down."""
        self._rollouts.add(rollout)

    def forget(self, rollout: Rollout) -> None:
        """The opposite of :meth:`watch`."""
        self._rollouts.discard(rollout)

    @property
    def live(self) -> int:
        """How many sandboxes episodes have, those coming and going included."""
        return self._started.live - self.warm if self._started is not None else 0

    @property
    def warm(self) -> int:
        """How many sandboxes there are that no episode has yet."""
        return sum(runner.deployer.warm for runner in self._runners.values())

    @property
    def sandbox(self) -> str:
        """The name of the sandbox provider; of several, the one that is used once the engine has started."""
        return self._started.provider.name if self._started is not None else str(self._sandbox or DEFAULT_PROVIDER)

    @property
    def _started(self) -> SandboxHost | None:
        return self._sandbox if isinstance(self._sandbox, SandboxHost) else self._host

"""Plays a schedule's rollouts side by side, through the engine's own parts, and tells what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from agent_env_core.bundle import load_bundle
from agent_env_core.errors import EpisodeError
from agent_env_core.play.runner import Runner
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.sandbox import host as host_module
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.steps.base import declaration
from chaos.envs import COUNTER
from chaos.schedule import KINDS, Plan, Schedule
from chaos.trouble import PLAYING, Playing, TroubledProvider

if TYPE_CHECKING:
    from agent_env_core.play.episode import Episode
    from agent_env_core.play.turn import Turn, TurnTools
    from agent_env_core.sandbox.contract import SandboxProvider

TASKS = {kind: f"verifier-{kind}" for kind in KINDS["verify"]}
"""Which task of the counter bundle has a verifier that does that."""


@dataclass(frozen=True)
class Limits:
    """Seconds, and how many at once.

    Attributes:
        ready: From a rollout's start to its first turn; for its scores too.
        tool: One tool call.
        hang: A tool call, or a verifier, that is known to hang.
        patience: What the host waits for a kill, or for a create that nobody wants any more.
        starting: Sandboxes that may be starting.
        running: Sandboxes that may exist.
    """

    ready: float = 90.0
    tool: float = 15.0
    hang: float = 0.5
    patience: float = 1.0
    starting: int = 16
    running: int = 64


@dataclass
class Outcome:
    """What came of a rollout.

    Attributes:
        plan: What was planned.
        scores: Its scores, or None.
        error: Why it has none.
        crash: What a player was given that is no ``EpisodeError``; empty when all is well.
        seconds: From its start to the end of its teardown.
        finished: Whether its teardown ended.
    """

    plan: Plan
    scores: dict[str, float] | None = None
    error: EpisodeError | None = None
    crash: str = ""
    seconds: float = 0.0
    finished: bool = False


@dataclass
class Aftermath:
    """What is left of a run, and what was seen in it.

    Attributes:
        outcomes: One for each rollout, in order.
        left: Sandboxes that exist after everything was closed.
        live: What the host still counts.
        tasks: Names of tasks that still run.
        descriptors: File descriptors more than before.
        most_starting: The most sandboxes that ever were starting.
        most_running: The most that ever existed.
        latencies: Seconds of tool calls in rollouts without faults.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    live: int = 0
    tasks: list[str] = field(default_factory=list)
    descriptors: int = 0
    most_starting: int = 0
    most_running: int = 0
    latencies: list[float] = field(default_factory=list)


@contextlib.contextmanager
def impatient(seconds: float = 1.0) -> Iterator[None]:
    """What hangs at a provider is given up after so long; minutes each would make a run take an hour."""
    before = host_module.KILL_TIMEOUT, host_module.UNDO_BUDGET
    host_module.KILL_TIMEOUT = host_module.UNDO_BUDGET = seconds
    try:
        yield
    finally:
        host_module.KILL_TIMEOUT, host_module.UNDO_BUDGET = before


async def run(schedule: Schedule, inner: SandboxProvider, limits: Limits, shared: Path) -> Aftermath:
    """Plays ``schedule`` on ``inner``, closes everything, and looks what is left.

    Args:
        schedule: What to play.
        inner: A provider of our own, new for this run; it is closed.
        limits: Deadlines and places.
        shared: A folder of this run's own, where places are counted.
    """
    process, tasks = psutil.Process(), asyncio.all_tasks()
    provider = TroubledProvider(inner)
    aftermath = Aftermath()
    host = SandboxHost(provider, max_starting=limits.starting, max_running=limits.running, shared=shared)
    bundle = load_bundle(COUNTER, declaration)
    with impatient(limits.patience):
        await host.start()
        async with (
            Runner(bundle, sandbox=host, verifier_timeout=limits.ready) as runner,
            Runner(bundle, sandbox=host, verifier_timeout=limits.hang) as hasty,  # for verifiers that hang
        ):
            before = process.num_fds()
            specs = {spec.task.name: spec for spec in runner.specs.values()}
            playing = [
                asyncio.create_task(_play(plan, specs, hasty if plan.has("verify:hang") else runner, limits, aftermath))
                for plan in schedule.plans
            ]
            if schedule.closes is not None:
                await asyncio.sleep(schedule.closes)
                await host.aclose()
            aftermath.outcomes = list(await asyncio.gather(*playing))
            aftermath.live = await _quiet(host)
            aftermath.descriptors = process.num_fds() - before
        await host.aclose()
    aftermath.most_starting, aftermath.most_running = provider.most_starting, provider.most_running
    aftermath.left = [info.id async for info in inner.list(host.labels)]
    await inner.aclose()
    aftermath.tasks = await _still_running(tasks)
    return aftermath


async def _still_running(before: set[asyncio.Task[object]], seconds: float = 3.0) -> list[str]:
    """What other tasks than those ``before`` do, once they had a little time to end."""
    others = asyncio.all_tasks() - before - {asyncio.current_task()}
    if others:
        _, others = await asyncio.wait(others, timeout=seconds)
    return sorted(f"{task.get_name()} ({task.get_coro()})" for task in others)


async def _quiet(host: SandboxHost, seconds: float = 30.0) -> int:
    """Waits until the host counts no sandbox; how many it counts then."""
    ends = time.monotonic() + seconds
    while host.live and time.monotonic() < ends:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.02)
    return host.live


async def _play(
    plan: Plan, specs: dict[str, EpisodeSpec], runner: Runner, limits: Limits, aftermath: Aftermath
) -> Outcome:
    await asyncio.sleep(plan.after)
    playing = Playing(plan)
    PLAYING.set(playing)
    task = next((TASKS[fault.kind] for fault in plan.faults if fault.where == "verify"), "one-turn")
    outcome, began = Outcome(plan), time.monotonic()
    try:
        episode = await specs[task].start(runner)
    except EpisodeError as exc:
        outcome.error, outcome.finished = exc, True
        return outcome
    player = _Player(plan, episode, runner, limits, playing, aftermath.latencies)
    try:
        outcome.scores = await player.play()
    except EpisodeError as exc:
        outcome.error = exc
    except Exception as exc:
        outcome.crash = f"{type(exc).__name__}: {exc}"
        await episode.abandon("its player crashed")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limits.ready + 30):
            await episode.wait_finished()
    outcome.finished = episode.finished
    outcome.seconds = time.monotonic() - began
    return outcome


class _Player:
    """Plays one episode as a session of the server does, with what goes wrong on the player's side."""

    def __init__(
        self, plan: Plan, episode: Episode, runner: Runner, limits: Limits, playing: Playing, latencies: list[float]
    ) -> None:
        self._plan, self._episode, self._runner, self._limits = plan, episode, runner, limits
        self._playing, self._latencies = playing, latencies
        self._ready = 2.0 if plan.has("create:hang", "endpoint:hang") else limits.ready

    async def play(self) -> dict[str, float]:
        work = asyncio.create_task(self._rollout())
        leaves = next((fault for fault in self._plan.faults if fault.where == "player"), None)
        if leaves is not None and leaves.kind != "never-ends":
            await asyncio.wait({work}, timeout=leaves.seconds)
            if leaves.kind == "cancelled":
                work.cancel()
            await self._episode.abandon(f"the schedule: {leaves}")
            with contextlib.suppress(asyncio.CancelledError):
                return await work
            return await self._episode.result()
        return await work

    async def _rollout(self) -> dict[str, float]:
        try:
            async with asyncio.timeout(self._ready):
                turn = await self._episode.next_turn()
            if turn is not None:
                await self._turn(turn)
            async with asyncio.timeout(self._ready):
                return await self._episode.result()
        except TimeoutError:
            await self._episode.abandon("it took too long")
            return await self._episode.result()

    async def _turn(self, turn: Turn) -> None:
        async with turn.tools() as tools:
            await self._call(tools, "add", {"amount": self._plan.amount})
            for fault in self._plan.faults:
                match str(fault):
                    case "env:dies":
                        await self._kill()
                        await self._call(tools, "add", {"amount": 0})
                    case "env:dies-in-call":
                        call = asyncio.create_task(self._call(tools, "hang", {}))
                        await asyncio.sleep(fault.seconds / 4)
                        await self._kill()
                        await call
                    case "env:tool-hangs":
                        await self._call(tools, "hang", {}, self._limits.hang)
                    case "env:tool-slow":
                        await self._call(tools, "slow", {})
                    case "player:never-ends":
                        await asyncio.sleep(fault.seconds)
                        await self._episode.abandon("its player never ended the turn")
        await turn.end("done")

    async def _kill(self) -> None:
        """Ends the rollout's sandboxes past the engine, as an engine or a kernel would."""
        provider = self._runner.host.provider
        assert isinstance(provider, TroubledProvider)
        for box in self._playing.boxes:
            await provider.inner.kill(box)

    async def _call(
        self, tools: TurnTools, name: str, arguments: dict[str, object], seconds: float | None = None
    ) -> None:
        began = time.monotonic()
        await tools.call(name, arguments, timeout=seconds or self._limits.tool)
        if not self._plan.faults:
            self._latencies.append(time.monotonic() - began)

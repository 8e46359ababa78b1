"""A task played from outside: it deploys, hands out its prompts one by one, scores, and clears away after itself."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agent_env_core.errors import EpisodeError, Phase, describe, episode_error
from agent_env_core.play.journal import Journal
from agent_env_core.play.retries import Retries
from agent_env_core.play.scheduler import FailedStep, run_steps
from agent_env_core.play.turn import Turn
from agent_env_core.steps.context import PromptRequest, RunContext
from agent_env_core.steps.placed import Places

if TYPE_CHECKING:
    from agent_env_core.bundle import Env
    from agent_env_core.envs.deployment import Deployment, DeployOptions
    from agent_env_core.play.runner import Runner
    from agent_env_core.play.spec import EpisodeSpec
    from agent_env_core.sandbox.contract import Sandbox
    from agent_env_core.steps.base import TaskStep
    from agent_env_core.steps.placed import SandboxOrder

log = logging.getLogger(__name__)

AT_END_SECONDS = 10.0
"""Seconds that each thing a step asked to be called at the end of a run may take."""


class Episode:
    """One run of one task, on one event loop. Made by :meth:`~agent_env_core.play.spec.EpisodeSpec.start`.

    Cancelling a caller of any method cancels that call alone, never the episode.

    Attributes:
        id: The episode's own name.
        spec: What is played.
        run: What the steps share: deployments, replies, verifications, notes.
    """

    def __init__(self, spec: EpisodeSpec, runner: Runner) -> None:
        self.id = uuid.uuid4().hex
        self.spec = spec
        max_ttl = runner.host.provider.capabilities.max_ttl
        self.run = RunContext(self.id, spec.task.bundle, self._deploy, self._play, runner.verifiers, max_ttl)
        self.run.destroy = self._destroy
        self.run.places = Places(self._place, self._destroy, runner.host.provider.capabilities, spec.workers)
        self.run.models = runner.models
        self._runner = runner
        self._retries = Retries(spec.steps if spec.evaluation else ())
        self._journal = Journal(self.id, spec.task.id)
        self._scores: dict[str, float] | None = None
        self._error: EpisodeError | None = None
        self._phase: Phase = "queue"
        self._steps: asyncio.Task[None] | None = None
        self._driver: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._let_go = asyncio.Event()
        self._let_go.set()
        self._turns: deque[Turn] = deque()  # delivered, not yet handed out
        self._open: list[Turn] = []
        self._delivered = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._deployments: list[Deployment] = []
        self._queued: dict[str, float] = {}
        self._placed: list[Sandbox] = []
        self._closing: list[asyncio.Task[None]] = []

    # -- what a player calls

    async def next_turn(self) -> Turn | None:
        """Waits for the next turn; None when the run ended well and there is none.

        Raises:
            EpisodeError: The run failed, or was abandoned.
        """
        while True:
            while self._turns:
                turn = self._turns.popleft()
                if turn.open:
                    return turn
            if self._error is not None:
                raise self._error
            if self._scores is not None:
                return None
            await self._news()

    async def result(self) -> dict[str, float]:
        """Waits for the scores: scoring step id to score. Returns as soon as they are known; teardown goes on behind.

        Raises:
            EpisodeError: The run failed or was abandoned; or a turn is still open, and nothing can go on.
        """
        while True:
            if self._error is not None:
                raise self._error
            if self._scores is not None:
                return dict(self._scores)
            for turn in self._open:
                if turn.open:
                    reason = f"the turn {turn.step_id!r} of the agent {turn.agent!r} is still open; end it first"
                    raise EpisodeError("turn", reason)
            await self._news()

    async def abandon(self, reason: str) -> None:
        """Ends the episode without a score and waits until nothing is left of it. Idempotent.

        An episode whose outcome is known keeps it. What :meth:`keep` left standing is ended as well.
        """
        self._let_go.set()
        self._stop(EpisodeError(self._phase, f"the episode was abandoned: {reason}"))
        await self.wait_finished()

    def keep(self) -> None:
        """Leaves the deployments standing, and renews their leases, until :meth:`abandon` is called."""
        self._let_go.clear()

    @property
    def finished(self) -> bool:
        """Whether the run and its teardown are over."""
        return self._over.is_set()

    async def wait_finished(self) -> None:
        """Waits until :attr:`finished`."""
        await self._over.wait()

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds spent so far, by the names of :data:`~agent_env_core.play.journal.TIMED`."""
        return self._journal.timings

    # -- the run

    def start(self) -> None:
        """Starts the run; called once, by the spec."""
        self._runner.track(self)
        self._journal.tell("started", "queue")
        running = run_steps(
            self.spec.steps, self._execute, on_failure=self._failed, again=self._retries.after, undo=self._undo
        )
        self._steps = asyncio.create_task(running)
        self._driver = asyncio.create_task(self._drive(self._steps), name=f"episode {self.id}")

    async def _drive(self, steps: asyncio.Task[None]) -> None:
        """Sees the steps through, settles the outcome, clears away. Only the steps are ever cancelled from inside."""
        try:
            await asyncio.wait({steps})
        except asyncio.CancelledError:
            self._stop(EpisodeError(self._phase, "the event loop is closing"))
            await asyncio.wait({steps})
        finally:
            self._settle(steps)
            try:
                await self._let_go.wait()
            finally:
                await self._teardown()

    def _settle(self, steps: asyncio.Task[None]) -> None:
        failure = None if steps.cancelled() else steps.exception()
        if self._error is None and failure is not None:
            self._error = episode_error(failure, self._phase)
        if self._error is None:
            try:
                self._scores = self._collect()
            except EpisodeError as exc:
                self._error = exc
        if self._error is not None:
            self._journal.tell("ended", self._error.phase, error=str(self._error), retryable=self._error.retryable)
        else:
            self._journal.tell("ended", "verify", scores=self._scores)
        self._ring()

    def _collect(self) -> dict[str, float]:
        """The scores by step id; a verification that no step of this run owns keeps its own key."""
        owners = {key: step.id for step in self.spec.steps if (key := getattr(step, "verifier_id", None)) is not None}
        scores = {owners.get(key, key): float(found.score) for key, found in self.run.verifications.items()}
        for step_id, score in scores.items():
            if not math.isfinite(score):
                raise EpisodeError("verify", f"the score of step {step_id!r} is {score}, which is no score")
        return scores

    async def _execute(self, step: TaskStep) -> None:
        self._phase = step.phase
        told = {"step": step.id, "type": step.type}
        self._journal.tell("step_started", step.phase, **told)
        began = time.monotonic()
        error = ""
        try:
            await step.run(self.run)
        except EpisodeError as exc:
            error = str(exc)
            raise
        except Exception as exc:
            error = describe(exc)
            attributed = episode_error(exc, step.phase)
            reason = f"step {step.id!r} ({step.type}): {attributed.reason}"
            raise EpisodeError(attributed.phase, reason, retryable=attributed.retryable) from exc
        finally:
            spent = time.monotonic() - began
            self._journal.took("play" if step.phase == "turn" else step.phase, spent)
            self._journal.tell("step_ended", step.phase, **told, seconds=spent, **({"error": error} if error else {}))

    def _failed(self, failed: FailedStep) -> None:
        kind = next(step.type for step in self.spec.steps if step.id == failed.step_id)
        cause = failed.error.__cause__ or failed.error
        entry = {"step_id": failed.step_id, "step_type": kind, "is_fatal": failed.fatal}
        entry |= {"phase": episode_error(failed.error, self._phase).phase}
        entry |= {"error": describe(failed.error), "error_type": type(cause).__name__}
        entry |= {"started_at_utc": failed.started_at.isoformat(), "duration_seconds": failed.seconds}
        entry |= {"is_retried": True} if failed.retried else {}
        self.run.note("failed_steps", entry)
        if failed.fatal and self._error is None:
            self._error = episode_error(failed.error, self._phase)
            self._close_turns(self._error)
            self._ring()

    async def _undo(self, steps: Sequence[TaskStep]) -> None:
        for step in steps:
            self._journal.tell("step_undone", step.phase, step=step.id, type=step.type)
            await step.undo(self.run)

    def _stop(self, error: EpisodeError) -> None:
        """Ends the run with ``error``, unless it has an outcome, or an error that came before."""
        if self._scores is None and self._steps is not None and not self._steps.done():
            self._error = self._error or error
            self._close_turns(self._error)
            self._steps.cancel()
            self._ring()

    def _broke(self, step_id: str, error: EpisodeError) -> EpisodeError:
        """An env or a tool call of a turn is in a state that nobody knows: ends the run, whatever is tolerant in it.

        A step that is to be tried again fails instead: what it goes back to may make the env anew.
        """
        if self._retries.left(step_id):
            for turn in self._open:
                if turn.step_id == step_id:
                    turn.fail(error)
            return error
        self._stop(error)
        return self._error or error

    # -- what the steps ask for

    async def _deploy(self, env: Env, step_id: str, options: DeployOptions) -> Deployment:
        def waited(seconds: float) -> None:
            more = max(0.0, seconds - self._queued.get(step_id, 0.0))  # servers of one env stand in the queue together
            self._queued[step_id] = self._queued.get(step_id, 0.0) + more
            self._journal.took("queue", more)
            self._journal.took("deploy", -more)  # the step's own time includes it

        deployment = await self._runner.deployer.deploy(env, step_id=step_id, options=options, waited=waited)
        self._runner.host.keep(deployment.sandbox, options.ttl)
        self._deployments.append(deployment)
        return deployment

    async def _place(self, order: SandboxOrder) -> Sandbox:
        sandbox = await self._runner.host.create(order.spec(await self._runner.image(order.image)))
        self._runner.host.keep(sandbox, order.ttl)
        self._placed.append(sandbox)
        return sandbox

    async def _play(self, request: PromptRequest) -> str:
        self._delivered += 1
        broke = partial(self._broke, request.step_id)
        turn = Turn(request, self._delivered, self.spec.most_turns, self._journal, broke)
        self._turns.append(turn)
        self._open.append(turn)
        self._journal.tell("turn_opened", "turn", step=request.step_id, number=turn.number, of=turn.of)
        self._ring()
        try:
            return await turn.played(self._turn_timeout(request.step_id))
        finally:
            self._open.remove(turn)
            self._closing.append(asyncio.create_task(turn.close_tools()))  # behind: no step waits for it
            self._journal.tell("turn_ended", "turn", step=request.step_id, number=turn.number, of=turn.of)

    def _turn_timeout(self, step_id: str) -> float | None:
        """Seconds for a turn of that step: a prompt's own bound is kept only where nobody trains."""
        if self.spec.turn_timeout is not None or not self.spec.evaluation:
            return self.spec.turn_timeout
        return next((getattr(step, "timeout_seconds", None) for step in self.spec.steps if step.id == step_id), None)

    def _close_turns(self, error: EpisodeError) -> None:
        for turn in self._open:
            turn.fail(error)

    # -- the end

    async def _teardown(self) -> None:
        began = time.monotonic()
        for end in reversed(self.run.at_end):
            try:
                async with asyncio.timeout(AT_END_SECONDS):
                    await end()
            except Exception as exc:
                log.warning("episode %s: a step's end failed: %s", self.id, describe(exc))
        ends = [self._end(deployment) for deployment in self._deployments]
        ends += [self._destroy(sandbox) for sandbox in self._placed]
        closing = asyncio.gather(*ends, *self._closing, return_exceptions=True)
        try:
            for outcome in await asyncio.shield(closing):
                if isinstance(outcome, Exception):
                    log.warning("episode %s left something behind: %s", self.id, describe(outcome))
        finally:
            self._journal.took("teardown", time.monotonic() - began)
            self._journal.tell("finished", "teardown", timings=dict(self.timings))
            self._runner.forget(self)
            self._over.set()

    async def _destroy(self, sandbox: Sandbox) -> None:
        await self._runner.host.destroy(sandbox.id)

    async def _end(self, deployment: Deployment) -> None:
        await self._runner.host.destroy(deployment.sandbox.id)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await deployment.close()

    # -- small parts

    async def _news(self) -> None:
        """Waits until a turn is delivered or the outcome is known."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(news)
        try:
            await news
        finally:
            self._waiting.discard(news)

    def _ring(self) -> None:
        for news in self._waiting:
            if not news.done():
                news.set_result(None)

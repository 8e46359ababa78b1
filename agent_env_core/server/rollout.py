"""One episode as a session plays it, with its deadlines. Everything here runs on the engine's loop.

A deadline is kept by not waiting any longer, whatever becomes of the work: what missed it is cancelled, the episode is
abandoned behind, and the session goes on at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agent_env_core.errors import EpisodeError, Phase, episode_error
from agent_env_core.play.bash import KILL_SECONDS

if TYPE_CHECKING:
    from agent_env_core.play.episode import Episode
    from agent_env_core.play.turn import Tool, ToolResult, Turn
    from agent_env_core.server.catalog import Place
    from agent_env_core.server.engine import Engine

T = TypeVar("T")

RESERVED = frozenset({"reset", "step", "state", "close", "end_turn"})
"""Tool names an env may not use: OpenEnv's own, and the one that ends a turn."""


@dataclass(frozen=True)
class Deadlines:
    """How long a session's calls may take, in seconds."""

    tool: float = 60.0
    reset: float = 600.0


def tools_digest(tools: Sequence[Tool]) -> str:
    """Equal for tools of equal names and input schemas, in whatever order."""
    shapes = sorted((tool.name, json.dumps(tool.input_schema, sort_keys=True)) for tool in tools)
    return hashlib.sha256(json.dumps(shapes).encode()).hexdigest()


class Rollout:
    """Plays one task, from its deploy to its scores.

    Args:
        engine: Where it runs.
        place: The task.
        deadlines: How long its calls may take.
        episode_id: What the client calls it, if it has a name for it.
    """

    def __init__(self, engine: Engine, place: Place, deadlines: Deadlines, episode_id: str | None = None) -> None:
        self.place = place
        self.deadlines = deadlines
        self.episode_id = episode_id
        self.turn: Turn | None = None
        self.offered: tuple[Tool, ...] = ()
        self.error: EpisodeError | None = None
        self._engine = engine
        self._episode: Episode | None = None
        self._over = False
        self._stopped = asyncio.Event()

    # -- what a session does

    async def open(self) -> Turn:
        """Deploys the task and opens its first turn.

        Raises:
            EpisodeError: It didn't work, or took longer than the deadline for a reset.
        """
        self._engine.watch(self)
        seconds = self.deadlines.reset
        missed = f"the episode wasn't ready within {seconds:g}s"
        turn = await self._within(self._first_turn(), seconds, "deploy", missed)
        if turn is None:
            raise self._fail(EpisodeError("deploy", "the task ended before it asked its agent anything"))
        return turn

    async def _first_turn(self) -> Turn | None:
        if self.error is not None:  # abandoned before it began
            raise self.error
        self._episode = await self._engine.play(self.place.served.spec)
        self.episode_id = self.episode_id or self._episode.id
        return await self._next_turn()

    async def _next_turn(self) -> Turn | None:
        assert self._episode is not None
        turn = await self._episode.next_turn()
        if turn is None:
            self.turn = None
            return None
        async with turn.tools() as tools:
            self.offered = await tools.list()
        if taken := sorted({tool.name for tool in self.offered} & RESERVED):
            raise EpisodeError(
                "turn",
                f"the env offers tools named {', '.join(taken)}, and an OpenEnv server needs these names itself:"
                " rename them in the env's server, or hide them with a modify_env_tool_access step",
            )
        self.turn = turn
        return turn

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Calls a tool of the open turn. A tool that fails, or isn't there, is a result and no error.

        Raises:
            EpisodeError: The call missed its deadline, or the env is gone: the episode has ended, unscored.
        """
        seconds = self.deadlines.tool
        missed = (
            f"{name} didn't answer within {seconds:g}s, and the episode ended, since what the call does may still be"
            " under way"
        )
        ends_itself = any(tool.name == name and not tool.server for tool in self.offered)
        # a command that is ended at its deadline is an answer, if it is given the time to end; for an env's tool the
        # deadline, and the words for it, are those kept here
        inner, outer = (seconds, seconds + KILL_SECONDS) if ends_itself else (seconds + 10, seconds)
        return await self._within(self._called(name, arguments, inner), outer, "tool", missed)

    async def _called(self, name: str, arguments: Mapping[str, Any], seconds: float) -> ToolResult:
        assert self.turn is not None
        async with self.turn.tools() as tools:
            return await tools.call(name, arguments, timeout=seconds)

    async def end(self, response: str | None) -> Turn | dict[str, float]:
        """Ends the open turn: returns the next one, or the scores.

        Raises:
            EpisodeError: The episode ended, unscored.
        """
        assert self.turn is not None
        seconds = self.deadlines.reset
        phase: Phase = "turn" if self.turn.number < self.turn.of else "verify"
        missed = f"ending the turn took longer than {seconds:g}s, and the episode ended"
        return await self._within(self._ended(self.turn, response), seconds, phase, missed)

    async def _ended(self, turn: Turn, response: str | None) -> Turn | dict[str, float]:
        assert self._episode is not None
        await turn.end(response)
        following = await self._next_turn()
        if following is not None:
            return following
        scores = await self._episode.result()
        self._over = True
        self._engine.forget(self)
        return scores

    # -- the ways out

    async def _within(self, work: Coroutine[Any, Any, T], seconds: float, phase: Phase, missed: str) -> T:
        """Waits for ``work``, but no longer than ``seconds``, and not once the episode is abandoned."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({task, stopped}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if self.error is not None:
                raise self.error
            if not task.done():
                raise EpisodeError(phase, missed, retryable=True)
            return task.result()
        except asyncio.CancelledError:
            self._fail(EpisodeError(phase, "the session went away", retryable=True))
            raise
        except Exception as exc:
            failure = self._fail(episode_error(exc, phase))
            raise failure from (exc if failure is not exc else None)
        finally:
            stopped.cancel()
            task.cancel()
            task.add_done_callback(_swallow)

    def _fail(self, error: EpisodeError) -> EpisodeError:
        """Ends the episode without a score; its teardown goes on behind. The first error is the one that counts."""
        if self.error is None:
            self.error = error
            self._over = True
            self._stopped.set()
            self._engine.forget(self)
            self._engine.behind(self._leave(error.reason), "ending an episode")
        return self.error

    async def _leave(self, reason: str) -> None:
        if self._episode is not None:
            await self._episode.abandon(reason)

    def abandon(self, reason: str) -> None:
        """Ends the episode, whatever it is doing; nothing happens when it has ended."""
        if not self._over:
            self._fail(EpisodeError("queue", f"the episode was abandoned: {reason}", retryable=True))


def _swallow(task: asyncio.Future[Any]) -> None:
    """Takes note of a task's error, which somebody else has reported already."""
    if not task.cancelled():
        task.exception()

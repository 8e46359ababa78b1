"""A session on an env server, for synchronous callers on any thread."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from agent_env_core.client.address import Address
from agent_env_core.client.loop import client_loop, run, run_behind
from agent_env_core.client.messages import Offered, Outcome, Row, ToolAnswer, Turn
from agent_env_core.client.plain import PlainPlayer
from agent_env_core.client.player import Player

TOOL_SECONDS = 60.0
RESET_SECONDS = 600.0
CLOSE_SECONDS = 15.0


def seconds(name: str, value: object) -> float:
    """``value``, which a user gave as ``name``, as seconds to wait.

    Raises:
        ValueError: It's no number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r} must be a number of seconds above 0")
    return float(value)


class Session:
    """One session: one episode at a time, one after another.

    Making one costs nothing: the socket is opened at the first :meth:`reset`, and lives until :meth:`close`, through
    as many episodes as there are. A process forked off starts with sessions of its own.

    Args:
        hosts: The server; or several that serve the same, of which the session goes to the one with the most room.
        tool_timeout: Seconds that one tool call may take. The server keeps it.
        reset_timeout: Seconds that a reset may take, through the opening of the first turn, and each ``end_turn``.
        tools: The tools the caller was made for; a task that offers others then ends in ``ForeignTools``.
        plain: Whether the server speaks OpenEnv alone, and nothing of ours.
    """

    def __init__(
        self,
        *hosts: Address,
        tool_timeout: float = TOOL_SECONDS,
        reset_timeout: float = RESET_SECONDS,
        tools: Offered | None = None,
        plain: bool = False,
    ) -> None:
        self._hosts = hosts
        self._plain = plain
        self._tool_timeout = seconds("tool_timeout", tool_timeout)
        self._reset_timeout = seconds("reset_timeout", reset_timeout)
        self._tools = tools
        self._player: Player | None = None
        self._forgotten: weakref.finalize[..., Session] | None = None
        self._pid = 0

    @property
    def _mine(self) -> Player:
        """The player of this process."""
        if self._player is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._player = (PlainPlayer if self._plain else Player)(
                self._hosts,
                tool_seconds=self._tool_timeout,
                reset_seconds=self._reset_timeout,
                tools=self._tools,
            )
            # a session that is forgotten gives its place on the server back
            self._forgotten = weakref.finalize(self, _close_behind, self._player, self._pid)
            self._forgotten.atexit = False
        return self._player

    @property
    def opened(self) -> bool:
        """Whether a reset, or :meth:`dial`, has begun to open it in this process."""
        return self._player is not None and self._pid == os.getpid()

    def dial(self) -> None:
        """Begins to open the socket, and returns at once: the first reset then finds it open, or waits for it."""
        if not self.opened:
            asyncio.run_coroutine_threadsafe(self._mine.dial(), client_loop())

    def reset(self, split: str, index: int, task_id: str | None = None) -> None:
        """Starts the next episode, and returns while it deploys. An episode still under way is abandoned.

        Raises:
            CapacityError: Every host is at its limit; it shows at the first reset.
            AgentEnvError: A host refuses us.
        """
        run(self._mine.begin(Row(split, index, task_id)))

    def turn(self) -> Turn:
        """The open turn; waits for the deploy.

        Raises:
            EpisodeError: The episode couldn't be opened, or has failed since.
        """
        return run(self._mine.opened())

    def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Calls a tool; waits for the deploy first.

        Raises:
            EpisodeError: The episode ended, unscored.
            TypeError: An argument can't be written as JSON; nothing was sent.
        """
        return run(self._mine.call(tool, arguments))

    def end_turn(self, response: str | None = None) -> Turn | None:
        """Ends the open turn with the model's reply; returns the next turn, or None after the last.

        Raises:
            EpisodeError: The episode ended, unscored.
        """
        return run(self._mine.end(response))

    def conclude(self) -> None:
        """Ends what is open, so that scoring starts, and returns at once."""
        if self.opened:
            run(self._mine.conclude())

    def outcome(self) -> Outcome:
        """The scores; ends what is open with an empty reply, and waits for the verifier.

        Raises:
            EpisodeError: The episode ended, unscored.
        """
        return run(self._mine.outcome())

    def close(self) -> None:
        """Abandons the episode and closes the socket. Never raises; a reset after it opens a new session."""
        close_all([self])

    def _closing(self) -> Future[None] | None:
        player, self._player = self._player, None
        if player is None or self._pid != os.getpid():
            return None
        if self._forgotten is not None:
            self._forgotten.detach()
        return run_behind(player.close())


def close_all(sessions: Iterable[Session]) -> None:
    """Closes sessions, all at the same time. Never raises."""
    for closing in [session._closing() for session in sessions]:
        if closing is not None:
            with suppress(CancelledError, TimeoutError):  # the loop ended first, and the sockets with it
                closing.result(CLOSE_SECONDS)


def _close_behind(player: Player, pid: int) -> None:
    """Closes without waiting: a garbage collection may run anywhere, on the loop's own thread too."""
    if pid == os.getpid():
        run_behind(player.close())

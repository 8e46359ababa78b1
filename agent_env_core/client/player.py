"""Plays one session's episodes, one after another, on the client's event loop.

A reset is sent and not waited for: the deploy goes on while the model generates. Whatever is asked of the episode next
waits for it. An error ends the episode and is kept, so that everything asked of it later gives the same reason; the
socket, when it was lost, is replaced at the next reset and never inside an episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import httpx

from agent_env_core.client.address import PREFIX, Address
from agent_env_core.client.connection import Connection
from agent_env_core.client.hosts import connect, reconnect
from agent_env_core.client.messages import (
    END_TURN,
    ForeignTools,
    Observation,
    Offered,
    Outcome,
    Row,
    ToolAnswer,
    Turn,
    call_message,
    reset_message,
)
from agent_env_core.errors import AgentEnvError, EpisodeError, Phase, describe, episode_error

ENDED = "The episode has ended."
SLACK_SECONDS = 15.0
"""How long past the server's own deadline an answer may take to get here."""
REDIAL_SECONDS = 30.0
ABANDON_PAUSES = (0.05, 0.2, 0.5, 1.0)
"""Seconds between tries to abandon an episode whose reset the server hasn't begun with."""


class Episode:
    """One row being played. Its tasks never raise: what went wrong is in ``error``."""

    def __init__(self, row: Row) -> None:
        self.id = secrets.token_hex(16)
        self.row = row
        self.link: Connection | None = None
        self.key = ""
        self.turn: Turn | None = None
        self.outcome: Outcome | None = None
        self.error: AgentEnvError | None = None
        self.rewards: list[float] = []
        self.opening: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is played."""
        return self.outcome is not None or self.error is not None or self.ending is not None

    def cancel(self) -> None:
        """Stops waiting for what is under way."""
        for task in (self.opening, self.ending):
            if task is not None:
                task.cancel()


class Player:
    """The async half of a session. Every method runs on the client's loop."""

    slack = SLACK_SECONDS

    def __init__(
        self, hosts: Sequence[Address], *, tool_seconds: float, reset_seconds: float, tools: Offered | None = None
    ) -> None:
        self._hosts = hosts
        self._tools = tools
        self._tool_seconds = tool_seconds
        self._reset_seconds = reset_seconds
        self._key = ""
        self._link: Connection | None = None
        self._dialling: asyncio.Task[Connection] | None = None
        self._episode: Episode | None = None

    # -- opening

    async def dial(self) -> None:
        """Begins to open the first connection, and returns at once; an error of it is for the reset that needs it."""
        if self._dialling is None and self._link is None and not self._key:
            self._dialling = asyncio.create_task(self._dial())
            self._dialling.add_done_callback(lambda dialling: dialling.cancelled() or dialling.exception())

    async def begin(self, row: Row) -> None:
        """Starts the next episode and returns while it deploys. The first one also finds out whether there's room.

        Raises:
            CapacityError: Every host is at its limit.
            AgentEnvError: A host refuses us.
        """
        previous, self._episode = self._episode, None
        await self.dial()
        if self._dialling is not None:
            dialling, self._dialling = self._dialling, None
            with contextlib.suppress(EpisodeError):  # nothing answers: `_open` tries again, behind, and says so
                self._link = await dialling
        episode = Episode(row)
        episode.opening = asyncio.create_task(self._guard(episode, self._open(episode, previous), "deploy"))
        self._episode = episode

    async def _dial(self) -> Connection:
        return await self._dialled(connect(self._hosts))

    async def _dialled(self, opening: Awaitable[Connection]) -> Connection:
        link = await opening
        self._key = secrets.token_urlsafe(24)
        return link

    async def _open(self, episode: Episode, previous: Episode | None) -> None:
        if previous is not None:  # shielded: it has to be done even when this episode is given up meanwhile
            await asyncio.shield(asyncio.create_task(self._leave(previous, "the trainer went on to its next rollout")))
        if self._link is None or self._link.lost is not None:
            self._link = await self._dialled(reconnect(self._hosts, min(REDIAL_SECONDS, self._reset_seconds)))
        episode.link, episode.key = self._link, self._key
        await self._reset(episode)

    async def _reset(self, episode: Episode) -> None:
        message = reset_message(
            episode.row, session=self._key, episode_id=episode.id,
            tool_timeout=self._tool_seconds, reset_timeout=self._reset_seconds,
        )  # fmt: skip
        missed = f"the episode wasn't ready within {self._reset_seconds:g}s"
        seen = await self._ask(episode, message, self._reset_seconds, "deploy", missed)
        if seen.done:
            raise EpisodeError("deploy", "the server ended the episode before its first turn")
        turn = seen.turn()
        self._same_tools(
            episode, turn.tools,
            "either the row's environment isn't the one that env.dataset names, or the bundle's toolsets don't keep"
            " such tasks apart, as a plugin's agent_env_toolset_key can",
        )  # fmt: skip
        episode.turn = turn

    def _same_tools(self, episode: Episode, tools: Offered | None, why: str) -> None:
        if self._tools and tools and tools.digest != self._tools.digest:
            raise ForeignTools(
                f"the task {episode.row.task_id or episode.row} offers the tools {_listed(tools)}, and the model was"
                f" shown {_listed(self._tools)}: {why}"
            )

    async def _guard(self, episode: Episode, work: Awaitable[None], phase: Phase) -> None:
        """Runs ``work``; an error of it becomes the episode's."""
        try:
            await work
        except Exception as exc:
            self._fail(episode, exc, phase)

    @staticmethod
    def _fail(episode: Episode, exc: Exception, phase: Phase) -> AgentEnvError:
        if episode.error is None:
            episode.error = exc if isinstance(exc, AgentEnvError) else episode_error(exc, phase)
        return episode.error

    async def _ask(
        self, episode: Episode, message: Mapping[str, Any], seconds: float, phase: Phase, missed: str
    ) -> Observation:
        assert episode.link is not None
        data = await episode.link.ask(message, seconds=seconds + self.slack, phase=phase, missed=missed)
        seen = Observation.read(data)
        if (failure := seen.failure(phase)) is not None:
            raise failure
        return seen

    # -- playing

    async def opened(self) -> Turn:
        """The open turn; waits for the reset.

        Raises:
            EpisodeError: The episode couldn't be opened, or has failed since.
        """
        return (await self._opened())[1]

    async def _opened(self) -> tuple[Episode, Turn]:
        episode = self._episode
        if episode is None:
            raise EpisodeError("turn", "no episode was started: call reset first")
        if episode.opening is not None:
            await asyncio.shield(episode.opening)
        if episode.error is not None:
            raise episode.error
        assert episode.turn is not None
        return episode, episode.turn

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Calls a tool of the open turn.

        Raises:
            EpisodeError: The episode ended, unscored.
        """
        episode, _ = await self._opened()
        if episode.over:
            return ToolAnswer(ENDED, is_error=True)
        missed = (
            f"{tool} didn't answer within {self._tool_seconds:g}s, and the episode ended, since what the call does may"
            " still be under way"
        )
        try:
            seen = await self._ask(episode, call_message(tool, arguments), self._tool_seconds, "tool", missed)
        except EpisodeError as exc:
            raise self._fail(episode, exc, "tool") from None
        if seen.done:
            episode.outcome = seen.outcome()
        return seen.answer()

    async def end(self, response: str | None) -> Turn | None:
        """Ends the open turn: returns the next one, or None when it was the last.

        A last turn is known as such beforehand, so its scores aren't waited for here.

        Raises:
            EpisodeError: The episode ended, unscored.
        """
        episode, turn = await self._opened()
        if episode.over:
            return None
        if turn.last:
            episode.ending = asyncio.create_task(self._guard(episode, self._end_all(episode, response), "verify"))
            return None
        try:
            return await self._end_one(episode, response)
        except EpisodeError as exc:
            raise self._fail(episode, exc, "turn") from None

    async def _end_one(self, episode: Episode, response: str | None) -> Turn | None:
        arguments = {} if response is None else {"response": response}
        missed = f"ending the turn took longer than {self._reset_seconds:g}s, and the episode ended"
        seen = await self._ask(episode, call_message(END_TURN, arguments), self._reset_seconds, "turn", missed)
        if seen.done:
            episode.outcome = seen.outcome()
            return None
        episode.turn = seen.turn()
        return episode.turn

    async def _end_all(self, episode: Episode, response: str | None = None) -> None:
        """Ends the open turn and, with empty replies, every turn after it."""
        while await self._end_one(episode, response) is not None:
            response = None

    # -- the end

    async def conclude(self) -> None:
        """Ends what is open, so that the server scores the episode, and returns without waiting for the scores."""
        episode = self._episode
        if episode is not None and not episode.over:
            episode.ending = asyncio.create_task(self._guard(episode, self._conclude(episode), "verify"))

    async def _conclude(self, episode: Episode) -> None:
        if episode.opening is not None:
            await asyncio.shield(episode.opening)
        if episode.error is None and episode.outcome is None:
            await self._end_all(episode)

    async def outcome(self) -> Outcome:
        """The episode's scores; ends what is still open first.

        Raises:
            EpisodeError: It ended without a score.
        """
        episode, _ = await self._opened()
        await self.conclude()
        if episode.ending is not None:
            await asyncio.shield(episode.ending)
        if episode.outcome is not None:
            return episode.outcome
        raise episode.error or EpisodeError("verify", "the episode ended without a score")

    async def close(self) -> None:
        """Closes the connection, which ends the episode; never raises. The next reset opens a new one."""
        episode, self._episode = self._episode, None
        link, self._link, self._key = self._link, None, ""
        dialling, self._dialling = self._dialling, None
        if episode is not None:
            episode.cancel()
        if dialling is not None:
            dialling.cancel()
            [dialled] = await asyncio.gather(dialling, return_exceptions=True)
            link = dialled if isinstance(dialled, Connection) else None
            self._key = ""
        if link is not None:
            await link.close()

    async def _leave(self, episode: Episode, reason: str) -> None:
        """Abandons an episode that is still under way, over HTTP: the socket answers in order, and is busy with it."""
        episode.cancel()
        link = episode.link
        if link is None:
            return
        url = f"{link.address.url}{PREFIX}/sessions/{episode.key}/abandon"
        try:
            for pause in (*ABANDON_PAUSES, 0):
                if link.lost is not None or not link.busy:
                    return  # nothing of it runs: the next reset, or the end of the socket, ends it
                if await asyncio.to_thread(_post, link.address, url, {"episode_id": episode.id, "reason": reason}):
                    return
                await asyncio.sleep(pause)
        except (httpx.HTTPError, ValueError) as exc:
            link.drop(EpisodeError("queue", f"an episode couldn't be abandoned: {describe(exc)}"))


def _listed(tools: Offered) -> str:
    return f"{', '.join(tools.names) or 'none'} ({tools.digest[:8]})"


def _post(address: Address, url: str, body: Mapping[str, Any]) -> bool:
    """Asks the server to abandon an episode; returns whether it found one to abandon."""
    answer = httpx.post(url, json=body, headers=address.headers, timeout=10, trust_env=not address.loopback)
    return answer.status_code == 200 and answer.json() == {"abandoned": True}

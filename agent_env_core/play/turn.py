"""One turn of an agent that is played from outside: its prompt, its tools, its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_env_core.envs.results import Tool, ToolResult, failed
from agent_env_core.envs.session import Tools, open_tools
from agent_env_core.errors import EpisodeError
from agent_env_core.play.bash import TOOL as BASH_TOOL
from agent_env_core.play.bash import Bash, open_bash
from agent_env_core.steps.context import ToolUse
from agent_env_core.texts import shortened

if TYPE_CHECKING:
    from agent_env_core.play.journal import Journal
    from agent_env_core.steps.context import PromptRequest

__all__ = ["Tool", "ToolResult", "Turn", "TurnTools"]

TOOL_TIMEOUT = 60.0
"""Seconds a tool call may take, where its caller sets no other bound."""
KEPT = 2_000
"""Characters of each end of a tool's answer that stay on record."""


class TurnTools:
    """The tools of an open turn. Got by :meth:`Turn.tools`."""

    def __init__(self, turn: Turn, tools: Tools, bash: Bash | None) -> None:
        self._turn = turn
        self._tools = tools
        self._bash = bash

    async def list(self) -> tuple[Tool, ...]:
        """What the turn offers, ``bash`` first if there is one. It is read once a turn and stays the same."""
        return (*((BASH_TOOL,) if self._bash is not None else ()), *await self._tools.list())

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = TOOL_TIMEOUT
    ) -> ToolResult:
        """Calls a tool.

        Args:
            name: The tool.
            arguments: Its arguments, sent on exactly as given.
            timeout: Seconds it may take. A ``bash`` command is ended then, which is a result; a call of an env's tool
                can't be ended, and is an error.

        Returns:
            What came of it; a tool that fails, is refused, or doesn't exist is a result too (``failure`` says which).

        Raises:
            EpisodeError: The deadline passed or the env can't be reached. The episode has then ended, unscored.
        """
        if self._bash is not None and name == BASH_TOOL.name:
            work = partial(self._bash.call, arguments, timeout)
        else:
            work = partial(self._tools.call, name, arguments, timeout=timeout)
        result = await self._turn._call(name, work)
        if result.failure == "unknown":  # an env knows nothing of `bash`
            offered = ", ".join(tool.name for tool in await self.list()) or "none"
            result = failed("unknown", f"there is no tool {name!r}; this turn offers: {offered}")
        kept = shortened(result.text, 2 * KEPT)
        self._turn._request.uses.append(ToolUse(name, dict(arguments or {}), kept, result.failure))
        return result


class Turn:
    """One prompt, to be answered.

    Attributes:
        prompt: What is asked.
        system_prompt: The system prompt in force, if any.
        step_id: The step that asks.
        agent: Who is asked.
        skills: What the agent was given to read, in its sandbox.
        number: Which played turn of the episode it is, from 1.
        of: How many played turns the task has at most.
        conversation: Turns of one conversation have the same; its history is the player's to keep.
    """

    def __init__(
        self,
        request: PromptRequest,
        number: int,
        of: int,
        journal: Journal,
        broke: Callable[[EpisodeError], EpisodeError],
    ) -> None:
        self.prompt = request.prompt
        self.system_prompt = request.system_prompt
        self.step_id = request.step_id
        self.agent = request.agent.name
        self.skills = request.agent.skills
        self.conversation = request.conversation
        self.number = number
        self.of = of
        self._request = request
        self._journal = journal
        self._broke = broke  # ends the episode; returns the error that it ended with
        self._reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._opening = asyncio.Lock()
        self._tools: Tools | None = None
        self._bash: Bash | None = None

    @property
    def open(self) -> bool:
        """Whether it still waits for its end."""
        return not self._reply.done()

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[TurnTools]:
        """The turn's tools. The sessions with the envs are opened once and held until the turn ends.

        An agent that works in a sandbox has ``bash`` among them.

        Raises:
            EpisodeError: The tools can't be had, and the episode has ended with that; or the turn is over.
        """
        async with self._opening:
            self._refuse_closed()
            if self._tools is None:
                agent = self._request.agent
                try:
                    tools = await open_tools(agent.envs, agent.role)
                    offered = {tool.name: tool.server for tool in await tools.list()}
                    self._bash = await open_bash(agent.sandbox, offered)
                    self._tools = tools
                except EpisodeError as exc:
                    self._give_up(exc)
                    raise
        yield TurnTools(self, self._tools, self._bash)

    async def end(self, response: str | None = None) -> None:
        """Hands the turn back. Idempotent; the first reply counts.

        Args:
            response: What verifiers see as the agent's reply; None is an empty one.
        """
        if self.open:
            self._reply.set_result(response or "")
            await asyncio.sleep(0)  # the run goes on before the caller does

    async def _call(self, name: str, work: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        self._refuse_closed()
        began = time.monotonic()
        failure: str = "broken"
        try:
            result = await work()
            failure = result.failure
            return result
        except EpisodeError as exc:
            self._give_up(exc)
            raise
        finally:
            spent = time.monotonic() - began
            self._journal.took("tool", spent)
            self._journal.tell("tool_called", "tool", step=self.step_id, tool=name, failure=failure, seconds=spent)

    def _give_up(self, error: EpisodeError) -> None:
        """Ends the episode; an error that ended it before is the one that counts."""
        if (first := self._broke(error)) is not error:
            raise first from error

    def _refuse_closed(self) -> None:
        if self.open:
            return
        if not self._reply.cancelled() and (error := self._reply.exception()) is not None:
            raise error
        raise EpisodeError("turn", f"the turn {self.step_id!r} is over")

    async def played(self, timeout: float | None) -> str:
        """For the episode: the reply, once there is one. The turn is closed when this returns or raises."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._reply)
        except TimeoutError as exc:
            error = EpisodeError("turn", f"the turn {self.step_id!r} didn't end within {timeout:g}s")
            self.fail(error)
            raise error from exc
        finally:
            self._reply.cancel()

    def fail(self, error: EpisodeError) -> None:
        """For the episode: closes the turn; whoever uses it further is told ``error``."""
        if self.open:
            self._reply.set_exception(error)
            self._reply.exception()  # whether or not anyone waits for it

    async def close_tools(self) -> None:
        """For the episode: ends the sessions with the envs."""
        if self._tools is not None:
            await self._tools.close()

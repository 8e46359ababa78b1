"""The tools of each toolset, read once from a deployed env and remembered."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import EpisodeError
from agent_env_core.server.catalog import Catalog
from agent_env_core.server.rollout import Deadlines, Rollout, tools_digest

if TYPE_CHECKING:
    from agent_env_core.play.turn import Tool
    from agent_env_core.server.engine import Engine

TRIES = 2
"""How often an env is deployed to read its tools, where another try may help."""


class Toolsets:
    """Reads toolsets. Everything but the constructor runs on the engine's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, tuple[Tool, ...]] = {}
        self._reading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def all(self, catalog: Catalog, seconds: float) -> list[dict[str, Any]]:
        """Every toolset, as the route answers it. One whose env doesn't deploy has an ``error`` in place of tools."""
        return list(await asyncio.gather(*(self._entry(catalog, name, seconds) for name in catalog.toolsets)))

    async def _entry(self, catalog: Catalog, name: str, seconds: float) -> dict[str, Any]:
        try:
            tools = await self.read(catalog, name, seconds)
        except EpisodeError as exc:
            return {"name": name, "error": f"{exc.phase}: {exc.reason}", "retryable": exc.retryable}
        return {"name": name, "digest": tools_digest(tools), "tools": described(tools)}

    async def read(self, catalog: Catalog, name: str, seconds: float) -> tuple[Tool, ...]:
        """The tools of one toolset, from the first turn of a task that has it.

        Raises:
            EpisodeError: Its env doesn't deploy.
        """
        place = catalog.find(task_id=catalog.toolsets[name].task.id)
        async with self._reading[name]:
            for left in reversed(range(TRIES)):
                if name in self._known:
                    break
                rollout = Rollout(self._engine, place, Deadlines(reset=seconds))
                try:
                    await rollout.open()
                    self._known[name] = rollout.offered
                except EpisodeError as exc:
                    if not (exc.retryable and left):
                        raise
                finally:
                    rollout.abandon("its tools were read")
            return self._known[name]


def described(tools: Sequence[Tool]) -> list[Mapping[str, Any]]:
    """Tools as OpenEnv describes them."""
    return [
        {"name": tool.name, "description": tool.description or "", "input_schema": dict(tool.input_schema)}
        for tool in tools
    ]

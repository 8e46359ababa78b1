"""A task played from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_env_core.play.turn import Turn


class Episode:
    id: str
    timings: Mapping[str, float]  # seconds: queue, deploy, setup, play, tool, verify, teardown

    async def next_turn(self) -> Turn | None: ...
    async def result(self) -> dict[str, float]: ...
    async def abandon(self, reason: str) -> None: ...
    @property
    def finished(self) -> bool: ...
    async def wait_finished(self) -> None: ...

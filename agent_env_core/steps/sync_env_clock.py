"""``sync_env_clock``: sets the virtual clock of an env and has its servers follow it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field, field_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.envs.clock import FASTEST, VirtualClock, read_time
from agent_env_core.envs.deployment import Deployment
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

log = logging.getLogger(__name__)

CLOCK = "urn:agentenv:clock/v1"
"""What a server that follows a clock advertises: it is called with the address to ask for the time."""


class SyncEnvClock(TaskStep):
    """Sets an env's clock; every server of it that has the clock extension is told where to ask for the time.

    Attributes:
        env_id: The env.
        virtual_time: What the clock shows now, as RFC 3339 writes it.
        virtual_seconds_per_real_second: How fast it runs; 0 holds it still.
        tolerate_missing_sync_time: Whether a server without the extension is passed over; it then keeps real time.
        timeout_seconds: Seconds that each server may take.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    env_id: str = Field(min_length=1)
    virtual_time: str
    virtual_seconds_per_real_second: float = Field(default=1.0, ge=0, le=FASTEST, allow_inf_nan=False)
    tolerate_missing_sync_time: bool = True
    timeout_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)

    @field_validator("virtual_time")
    @classmethod
    def _is_a_time(cls, text: str) -> str:
        read_time(text)
        return text

    async def run(self, run: RunContext) -> None:
        """Sets the clock, and then has one server after another follow it."""
        env = run.env(self.env_id)
        clock = VirtualClock(read_time(self.virtual_time), self.virtual_seconds_per_real_second)
        env.clock = clock
        synced: list[str] = []
        skipped: list[str] = []
        for server in env.servers:
            (synced if await self._follows(server, clock) else skipped).append(server.card.name)
        if not synced:
            log.warning("step %r: no server of the env %r follows its clock", self.id, env.env.name)
        run.note("clock_configurations", {
            "step_id": self.id,
            "env_id": self.env_id,
            "virtual_time": self.virtual_time,
            "virtual_seconds_per_real_second": self.virtual_seconds_per_real_second,
            "synced": synced,
            "skipped": skipped,
        })  # fmt: skip

    async def _follows(self, server: Deployment, clock: VirtualClock) -> bool:
        method = server.card.first_method(CLOCK)
        if method is None:
            if self.tolerate_missing_sync_time:
                return False
            reason = f"the env {server.env.name!r} doesn't advertise {CLOCK}, and tolerate_missing_sync_time is false"
            raise EpisodeError("setup", reason)
        address = await clock.serve(server, timeout=self.timeout_seconds)
        await server.call_extension(method, {"env_get_time_url": address}, timeout=self.timeout_seconds)
        return True


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``sync_env_clock``."""
    register("sync_env_clock", SyncEnvClock)

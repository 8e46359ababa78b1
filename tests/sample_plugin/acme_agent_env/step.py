"""The step type ``keeper_load``: starts a game of the keeper env, with its own checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from agent_env_core import EpisodeError, hookimpl
from agent_env_core.bundle.references import Reference
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext


class KeeperLoad(TaskStep):
    """Has the keeper think of a number.

    Attributes:
        env_id: The env.
        secret: The number to find.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    env_id: str
    secret: int = Field(ge=1, le=1000)

    async def run(self, run: RunContext) -> None:
        """Calls the env's own extension."""
        env = run.env(self.env_id)
        server = env.card.server("keeper")
        method = server.first_method("urn:keeper:load/v1") if server else None
        if method is None:
            raise EpisodeError("setup", f"the env {env.env.name!r} is no keeper")
        await env.call_extension(method, {"secret": self.secret}, timeout=10)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``keeper_load``."""
    register("keeper_load", KeeperLoad)

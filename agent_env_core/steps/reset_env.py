"""``reset_env``: empties the servers of an env."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.envs import data
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

log = logging.getLogger(__name__)


class ResetEnv(TaskStep):
    """Empties every server of an env that can be; what isn't deployed, or can't be emptied, is skipped with a note.

    Attributes:
        env_id: The env.
        fail_task_on_error: False by default, unlike in other steps.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    env_id: str = Field(min_length=1)
    fail_task_on_error: bool = False

    async def run(self, run: RunContext) -> None:
        """Empties them, one after another."""
        deployed = run.envs.get(self.env_id)
        if deployed is None:
            self._skip(run, f"the env {self.env_id.rpartition('/')[2]!r} isn't deployed")
            return
        for server in deployed.servers:
            if data.serves(server, "data/reset"):
                await data.reset(server)
            else:
                self._skip(run, f"the env {server.env.name!r} has no data/reset")

    def _skip(self, run: RunContext, why: str) -> None:
        log.info("step %r (reset_env) skips: %s", self.id, why)
        run.note("env_resets_skipped", {"step_id": self.id, "reason": why})


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``reset_env``."""
    register("reset_env", ResetEnv)

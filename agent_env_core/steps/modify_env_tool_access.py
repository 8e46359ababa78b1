"""``modify_env_tool_access``: shows tools of an env to a role, or takes them away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.envs.access import Action
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

OWN_EXTENSION = "urn:agentenv:{action}-tool/v1"
"""What a server that keeps such rules itself advertises."""


class ModifyEnvToolAccess(TaskStep):
    """Changes the access rules of an env; see :class:`~agent_env_core.envs.access.ToolAccess`.

    Attributes:
        env_id: The env.
        action: ``disable`` or ``enable``.
        role: Whom it concerns; ``*`` is every role.
        tools: Their names; ``*`` among them is every tool.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    env_id: str = Field(min_length=1)
    action: Action
    role: str = Field(min_length=1)
    tools: list[Annotated[str, Field(min_length=1)]]

    async def run(self, run: RunContext) -> None:
        """Tells each server that keeps rules of its own, and then our own rules, which always apply."""
        env = run.env(self.env_id)
        tools = "*" if "*" in self.tools else self.tools
        for server in env.servers:
            method = server.card.first_method(OWN_EXTENSION.format(action=self.action))
            if method is not None:
                await server.call_extension(method, {"role": self.role, "tools": tools}, timeout=30.0)
        run.before[self.id] = env.access.copy()
        env.access.change(self.action, self.role, self.tools)

    async def undo(self, run: RunContext) -> None:
        """Has our own rules be as they were; what a server keeps itself isn't known here."""
        if self.id in run.before and self.env_id in run.envs:
            run.envs[self.env_id].access.restore(run.before.pop(self.id))


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``modify_env_tool_access``."""
    register("modify_env_tool_access", ModifyEnvToolAccess)

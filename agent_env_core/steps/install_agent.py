"""``install_agent``: the played agent moves into a container of the task."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError, Phase
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import PlayedAgent, RunContext
from agent_env_core.steps.placed import DEFAULT_AGENT


class InstallAgent(TaskStep):
    """Puts an agent into a sandbox that an earlier step made. Nothing is installed: its ``bash`` runs there.

    Attributes:
        sandbox_name: The sandbox.
        container_name: A container in it; None is the sandbox itself.
        agent_name: Its name in the task.
        workspace_dir: Where its commands run; None is the image's working folder.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("a2a_agent_id", "agent"),)
    phase: ClassVar[Phase] = "deploy"

    sandbox_name: str = Field(min_length=1)
    container_name: str | None = Field(default=None, min_length=1)
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    workspace_dir: str | None = Field(default=None, pattern="^/")

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds agents that are prompted and that nobody plays."""
        lines = super().refusals(played)
        if self.agent_name not in played:
            lines.append(
                f"agent_name={self.agent_name!r}: it is prompted, and only agents that are played from outside can be"
            )
        return lines

    async def run(self, run: RunContext) -> None:
        """Lets the agent in."""
        if self.agent_name in run.agents:
            raise EpisodeError("setup", f"the agent {self.agent_name!r} is already deployed")
        placed = await run.places.find(self.sandbox_name, self.container_name)
        run.before[self.id] = (placed, placed.workdir)
        placed.workdir = self.workspace_dir or placed.workdir
        run.agents[self.agent_name] = PlayedAgent(self.agent_name, sandbox=placed)

    async def undo(self, run: RunContext) -> None:
        """Takes the agent out again."""
        run.agents.pop(self.agent_name, None)
        if self.id in run.before:
            placed, workdir = run.before.pop(self.id)
            placed.workdir = workdir


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``install_agent``."""
    register("install_agent", InstallAgent)

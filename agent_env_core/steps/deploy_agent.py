"""``deploy_agent``: puts an agent that is played from outside into its place."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import PlayedAgent, RunContext
from agent_env_core.steps.placed import DEFAULT_AGENT


class DeployAgent(TaskStep):
    """Deploys an agent. In an episode the trainer's model plays it, so nothing is started and its image isn't needed.

    Of the format's fields, those about the agent's own container and model (``a2a_agent_id``, ``env_vars``, ``cpu``,
    ``ttl_seconds``, ``network_policy`` and the like) concern what the model takes the place of, and play no part.

    Attributes:
        agent_name: Its name in the task.
        env_ids: The envs whose tools it has.
        env_step_id: The ``deploy_env`` step whose deployments are meant; None takes any.
        role: What it may do in the envs.
        system_prompt: Its system prompt, until a prompt brings another.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("env_ids", "env", many=True),
        Reference("a2a_agent_id", "agent", pin="a2a_agent_version"),
        Reference("agent_snapshot_files_artifact_id", "artifact", artifact_type="file_artifact_universe"),
    )

    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    env_ids: list[str] = Field(default_factory=list)
    env_step_id: str | None = None
    role: str | None = None
    system_prompt: str | None = None
    skills: list[dict[str, Any]] = Field(default_factory=list)
    sandbox_name: str | None = None
    agent_snapshot_files_artifact_id: str | None = None
    agent_snapshot_target_context_id: str | None = None
    enable_agent_changelog: bool = False
    agent_changelog_object_url: str | None = None

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what needs the agent itself, or a sandbox for it."""
        lines = super().refusals(played)
        if self.agent_name not in played:
            return [
                *lines,
                f"agent_name={self.agent_name!r}: only agents that the trainer plays can be deployed so far",
            ]
        return lines + self.unsupported(
            skills=[],
            sandbox_name=None,
            agent_snapshot_files_artifact_id=None,
            agent_snapshot_target_context_id=None,
            enable_agent_changelog=False,
            agent_changelog_object_url=None,
        )

    async def run(self, run: RunContext) -> None:
        """Gives the agent its envs."""
        if self.agent_name in run.agents:
            raise EpisodeError("setup", f"the agent {self.agent_name!r} is already deployed")
        envs = tuple(run.env_of(env_id, self.env_step_id) for env_id in dict.fromkeys(self.env_ids))
        role = self.role if self.role and self.role.strip() else None
        run.agents[self.agent_name] = PlayedAgent(self.agent_name, envs, role, self.system_prompt)

    async def undo(self, run: RunContext) -> None:
        """Takes the agent out of its place."""
        run.agents.pop(self.agent_name, None)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``deploy_agent``."""
    register("deploy_agent", DeployAgent)

"""``deploy_agent``: puts an agent that is played from outside into its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import PlayedAgent, RunContext
from agent_env_core.steps.placed import DEFAULT_AGENT, File, PlacedSandbox, Plan, SandboxOrder
from agent_env_core.steps.placing import PlacingStep, default_image
from agent_env_core.steps.skills import SKILL_FILE, description_of, give_skill


class WrittenSkill(BaseModel):
    """A skill that a task brings in its own text.

    Attributes:
        name: Its name.
        description: What it is for; by default as its text's front matter says.
        skill_md: The text of its ``SKILL.md``.
        content: Another word for it.
        object_url: Where an object store has it; not supported.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str = Field(min_length=1)
    description: str = ""
    skill_md: str | None = None
    content: str | None = None
    object_url: str | None = None

    @model_validator(mode="after")
    def _one_text(self) -> WrittenSkill:
        if sum(item is not None for item in (self.skill_md, self.content, self.object_url)) != 1:
            raise ValueError("set exactly one of skill_md, content and object_url")
        return self

    @property
    def text(self) -> str:
        """The text of its ``SKILL.md``."""
        return self.skill_md if self.skill_md is not None else self.content or ""


class DeployAgent(PlacingStep):
    """Deploys an agent. In an episode the trainer's model plays it, so its own image isn't needed.

    An agent in whose sandbox some step acts gets one, with a ``bash`` among its tools. Of the format's fields, those
    about the agent's program and model (``a2a_agent_id``, ``litellm_base_url`` and the like) concern what the model
    takes the place of, and play no part.

    Attributes:
        agent_name: Its name in the task.
        env_ids: The envs whose tools it has.
        env_step_id: The ``deploy_env`` step whose deployments are meant; None takes any.
        role: What it may do in the envs.
        system_prompt: Its system prompt, until a prompt brings another.
        skills: What it is given to read, in its sandbox.
        sandbox_name: The sandbox it works in; None is one of its own.
        enable_docker: Whether it needs Docker in its sandbox; not supported.
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
    skills: list[WrittenSkill] = Field(default_factory=list)
    sandbox_name: str | None = None
    enable_docker: bool = False
    agent_snapshot_files_artifact_id: str | None = None
    agent_snapshot_target_context_id: str | None = None
    enable_agent_changelog: bool = False
    agent_changelog_object_url: str | None = None

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what needs the agent itself."""
        lines = super().refusals(played)
        if self.agent_name not in played:
            return [
                *lines,
                f"agent_name={self.agent_name!r}: it is prompted, and only agents that are played from outside can be",
            ]
        lines += [f"skills: {skill.name!r} has an object_url, and there is no object store" for skill in self.skills
                  if skill.object_url is not None]  # fmt: skip
        return lines + self.unsupported(
            enable_docker=False,
            agent_snapshot_files_artifact_id=None,
            agent_snapshot_target_context_id=None,
            enable_agent_changelog=False,
            agent_changelog_object_url=None,
        )

    def orders(self, plan: Plan) -> Sequence[SandboxOrder]:
        """One of its own, if it works in one."""
        own = self.agent_name in plan.workers and self.sandbox_name is None
        return (self.order(default_image(), plan.max_ttl),) if own else ()

    async def run(self, run: RunContext) -> None:
        """Gives the agent its envs, its sandbox and its skills."""
        if self.agent_name in run.agents:
            raise EpisodeError("setup", f"the agent {self.agent_name!r} is already deployed")
        envs = tuple(run.env_of(env_id, self.env_step_id) for env_id in dict.fromkeys(self.env_ids))
        role = self.role if self.role and self.role.strip() else None
        agent = PlayedAgent(self.agent_name, envs, role, self.system_prompt, await self._sandbox(run))
        for skill in self.skills:
            text = skill.text
            files = [File(SKILL_FILE, text.encode())]
            await give_skill(agent, skill.name, skill.description or description_of(text), files, self.id)
        run.agents[self.agent_name] = agent

    async def _sandbox(self, run: RunContext) -> PlacedSandbox | None:
        if self.agent_name not in run.places.workers:
            return None
        if self.sandbox_name is not None:
            return await run.places.find(self.sandbox_name)
        return await run.places.make(self._place, "agent", self.order(default_image(), run.max_ttl))

    @property
    def _place(self) -> str:
        return f"the sandbox of {self.agent_name}"  # no deploy_sandbox step may take it: names of those have no blanks

    async def undo(self, run: RunContext) -> None:
        """Takes the agent out of its place, and ends a sandbox of its own."""
        run.agents.pop(self.agent_name, None)
        run.places.forget_loads(self.id)
        await run.places.end(self._place)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``deploy_agent``."""
    register("deploy_agent", DeployAgent)

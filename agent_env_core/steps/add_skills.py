"""``add_skills``: gives an agent skills to read, in its sandbox."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.files import entity_files, put_files
from agent_env_core.steps.placed import DEFAULT_AGENT, File
from agent_env_core.steps.skills import FOLDER, SKILL_FILE, description_of, give_skill


class AddedSkill(BaseModel):
    """A skill: one of the bundle's, or a text.

    Attributes:
        skill_artifact_id: The skill in the bundle's ``skills/``.
        body: The text of a ``SKILL.md``.
        name: Its name, which a text needs.
        description: What it is for; by default as its front matter says.
        object_url: Where an object store has it; not supported.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    skill_artifact_id: str | None = Field(default=None, min_length=1)
    body: str | None = None
    name: str | None = Field(default=None, min_length=1)
    description: str = ""
    object_url: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> AddedSkill:
        if sum(item is not None for item in (self.skill_artifact_id, self.body, self.object_url)) != 1:
            raise ValueError("set exactly one of skill_artifact_id, body and object_url")
        if self.body is not None and self.name is None:
            raise ValueError("a skill with a body needs a name")
        return self


class AddSkills(TaskStep):
    """Puts skills into an agent's sandbox; its turns tell of them from then on.

    Attributes:
        skills: The skills.
        file_artifact_universe_ids: Trees of files that lie beside them.
        cli_artifact_ids: Command lines of envs; not supported.
        agent_name: The agent.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("skills.skill_artifact_id", "skill"),
        Reference("cli_artifact_ids", "artifact", many=True),
        Reference("file_artifact_universe_ids", "artifact", many=True, artifact_type="file_artifact_universe"),
    )

    skills: list[AddedSkill] = Field(default_factory=list)
    file_artifact_universe_ids: list[str] = Field(default_factory=list)
    cli_artifact_ids: list[str] = Field(default_factory=list)
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)

    @model_validator(mode="after")
    def _adds_something(self) -> AddSkills:
        if not (self.skills or self.file_artifact_universe_ids or self.cli_artifact_ids):
            raise ValueError("name what to add: skills, file_artifact_universe_ids or cli_artifact_ids")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what is somewhere else than in the bundle."""
        lines = super().refusals(played) + self.unsupported(cli_artifact_ids=[])
        stored = [skill for skill in self.skills if skill.object_url is not None]
        return lines + [f"skills: {skill.object_url!r} is in an object store, and there is none" for skill in stored]

    async def run(self, run: RunContext) -> None:
        """Puts them there."""
        agent = run.agent(self.agent_name)
        run.before[self.id] = agent.skills
        for skill in self.skills:
            if skill.skill_artifact_id is not None:
                found = run.bundle.skills[skill.skill_artifact_id]
                files = entity_files(run.bundle, found.id)
                await give_skill(
                    agent, skill.name or found.name, skill.description or found.description, files, self.id
                )
            else:
                text = skill.body or ""
                files = (File(SKILL_FILE, text.encode()),)
                await give_skill(agent, skill.name or "", skill.description or description_of(text), files, self.id)
        for tree in self.file_artifact_universe_ids:
            name = run.bundle.artifacts[tree].name
            await put_files(
                run.agent_sandbox(self.agent_name), f"{FOLDER}/{name}", entity_files(run.bundle, tree), self.id
            )

    async def undo(self, run: RunContext) -> None:
        """Takes them away from what its turns tell; the files stay until they are overwritten."""
        if self.id in run.before and self.agent_name in run.agents:
            run.agents[self.agent_name].skills = run.before.pop(self.id)
        run.places.forget_loads(self.id)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``add_skills``."""
    register("add_skills", AddSkills)

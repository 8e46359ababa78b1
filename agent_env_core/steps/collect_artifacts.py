"""``collect_artifacts``: takes files out of a sandbox, for later steps of the run."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.files import take_files
from agent_env_core.steps.placed import DEFAULT_AGENT, PlacedSandbox


class CollectArtifacts(TaskStep):
    """Takes files out of a sandbox; ``load_artifact`` can put them into another one. What isn't there isn't taken.

    Attributes:
        base_path: The folder they are in.
        artifact_paths: Files and folders in it; none means all.
        exclude_basenames: Names of files and folders that stay, wherever they lie.
        agent_name: The agent whose sandbox it is.
        sandbox_name: The sandbox.
        container_name: A container in it.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    base_path: str = Field(default="/app/artifact", pattern="^/")
    artifact_paths: list[str] = Field(default_factory=list)
    exclude_basenames: list[str] = Field(default_factory=list)
    agent_name: str | None = Field(default=None, min_length=1)
    sandbox_name: str | None = Field(default=None, min_length=1)
    container_name: str | None = None
    env_id: str | None = None
    artifacts_key: str | None = None
    manifest_step_id: str | None = None
    universe_id_suffix: Any = None

    @model_validator(mode="after")
    def _one_place(self) -> CollectArtifacts:
        if self.sandbox_name and self.agent_name:
            raise ValueError("set one of sandbox_name and agent_name, not both")
        if self.container_name and not self.sandbox_name:
            raise ValueError(f"container_name={self.container_name!r} needs sandbox_name")
        for path in self.artifact_paths:
            if self._inside(path) is None:
                raise ValueError(f"artifact_paths: {path!r} isn't in base_path={self.base_path!r}")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds envs that are no sandboxes of ours to look into, and lists that agents or seeds give."""
        return super().refusals(played) + self.unsupported(env_id=None, artifacts_key=None, manifest_step_id=None)

    async def run(self, run: RunContext) -> None:
        """Takes them."""
        placed = await self._place(run)
        paths = [self._inside(path) or "." for path in self.artifact_paths] or ["."]
        left = set(self.exclude_basenames)
        files = await take_files(placed, self.base_path, paths)
        kept = tuple(file for file in files if not left & set(file.path.split("/")))
        run.collected[self.id] = kept
        run.note("collected_artifacts", {"step_id": self.id, "files": [file.path for file in kept]})

    async def _place(self, run: RunContext) -> PlacedSandbox:
        if self.sandbox_name is not None:
            return await run.places.find(self.sandbox_name, self.container_name)
        return run.agent_sandbox(self.agent_name or DEFAULT_AGENT)

    def _inside(self, path: str) -> str | None:
        """A path relative to the base; None where it leads out."""
        relative = posixpath.relpath(posixpath.join(self.base_path, path), self.base_path)
        return None if relative == ".." or relative.startswith("../") else relative

    async def undo(self, run: RunContext) -> None:
        """Forgets them."""
        run.collected.pop(self.id, None)
        run.forget("collected_artifacts", self.id)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``collect_artifacts``."""
    register("collect_artifacts", CollectArtifacts)

"""``snapshot_env``: exports what an env's servers hold, for a later ``load_artifact`` of the same task."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.envs import data
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

NOTES = "env_snapshotted_universes"
"""The notes that tell which step made which snapshot."""


class SnapshotEnv(TaskStep):
    """Makes an ``environment_universe`` of what the servers of an env hold. The run keeps it; there is no store.

    Attributes:
        env_id: The env.
        env_step_id: The ``deploy_env`` step whose deployment is meant; None takes any.
        snapshot_id: The name that later steps load it by; by default it is noted under the step's id alone.
        export_timeout_seconds: Seconds that each server may take.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("env_id", "env"),
        Reference("snapshot_id", "artifact", output=True, artifact_type="environment_universe"),
        Reference("original_universe_artifact_id", "artifact"),
    )

    env_id: str = Field(min_length=1)
    env_step_id: str | None = None
    snapshot_id: str | None = Field(default=None, min_length=1)
    original_universe_artifact_id: str | None = None
    export_timeout_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    include_env_trajectory: bool = False
    include_env_changes: bool = False

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds the records that a gateway keeps of an env."""
        return super().refusals(played) + self.unsupported(include_env_trajectory=False, include_env_changes=False)

    async def run(self, run: RunContext) -> None:
        """Exports every server that can be; it is an error when none can."""
        env = run.env_of(self.env_id, self.env_step_id)
        able = [server for server in env.servers if data.serves(server, "data/get")]
        if not able:
            raise EpisodeError("setup", f"env_id: no server of the env {env.env.name!r} has data/get")
        seeds = {}
        for server in able:
            seed = await data.export(server, timeout=self.export_timeout_seconds)
            if seed is not None:
                seeds[server.card.name] = seed
        name = self._name(run)
        run.snapshots[name] = seeds
        run.note(NOTES, {"step_id": self.id, "id": name, "version": 1})

    def _name(self, run: RunContext) -> str:
        return self.snapshot_id or f"{run.episode_id}/{self.id}"

    async def undo(self, run: RunContext) -> None:
        """Forgets the snapshot."""
        run.snapshots.pop(self._name(run), None)
        run.forget(NOTES, self.id)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``snapshot_env``."""
    register("snapshot_env", SnapshotEnv)

"""``deploy_env``: starts an env of the bundle, fresh, for this run alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import ClassVar, Literal

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.envs.composed import compose
from agent_env_core.envs.deployment import DeployOptions
from agent_env_core.errors import EpisodeError, Phase
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext


class DeployEnv(TaskStep):
    """Deploys an env; one deployment of it may live in a run.

    Of the format's fields, ``sandbox_type`` is overridden by the server's own ``sandbox=``, ``gateway_mode`` has no
    gateway to set, and ``disk_size_gb`` is met by sandboxes, whose disks have no such limit.

    Attributes:
        env_id: The env.
        ttl_seconds: After that long the sandbox ends by itself, counted from the last sign of life of the episode
            where the provider can renew a lease, and from the deploy where it can't. A provider's own maximum applies
            where it isn't set.
        cpu: Cores; refused by a provider that can't hold an env to them.
        memory_mb: MiB; the same.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("env_id", "env", pin="env_version"),
        Reference("artifact_id", "artifact", pin="artifact_version"),
    )
    phase: ClassVar[Phase] = "deploy"

    env_id: str = Field(min_length=1)
    ttl_seconds: float = Field(default=7200, gt=0, allow_inf_nan=False)
    gateway_mode: Literal["performance", "consistent"] = "performance"
    cpu: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    env_version: int | None = None
    artifact_id: str | None = None
    artifact_version: int | None = None
    env_state_type: str | None = None
    env_state_instance_id: str | None = None

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what needs a store of versions and states, which there is none of."""
        return super().refusals(played) + self.unsupported(
            env_version=None,
            artifact_id=None,
            artifact_version=None,
            env_state_type=None,
            env_state_instance_id=None,
        )

    def options(self, max_ttl: float | None) -> DeployOptions:
        """What it asks of a sandbox, on a provider whose sandboxes live ``max_ttl`` seconds at most."""
        asked = "ttl_seconds" in self.model_fields_set
        ttl = self.ttl_seconds if asked or max_ttl is None else min(self.ttl_seconds, max_ttl)
        return DeployOptions(ttl, self.cpu, self.memory_mb)

    async def run(self, run: RunContext) -> None:
        """Deploys it; returns when it is ready."""
        env = run.bundle.envs[self.env_id]
        if self.env_id in run.envs:
            raise EpisodeError(
                "deploy", f"the env {env.name!r} is already deployed, by step {run.envs[env.id].step_id!r}"
            )
        options = self.options(run.max_ttl)
        deploys = [asyncio.ensure_future(run.deploy(server, self.id, options)) for server in env.servers]
        try:
            servers = [await deploy for deploy in deploys]
        finally:
            for deploy in deploys:  # what was deployed is the run's to end; what wasn't yet needs no more time
                deploy.cancel()
            await asyncio.gather(*deploys, return_exceptions=True)
        run.envs[env.id] = servers[0]
        if env.children:
            run.envs[env.id], gateway = await compose(env, self.id, servers)
            run.at_end.append(gateway.close)

    async def undo(self, run: RunContext) -> None:
        """Ends the deployment. What a deploy that failed left standing is ended with the run."""
        deployment = run.envs.pop(self.env_id, None)
        if deployment is not None:
            await asyncio.gather(*(run.destroy(server.sandbox) for server in deployment.children or (deployment,)))


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``deploy_env``."""
    register("deploy_env", DeployEnv)

"""``deploy_sandbox``: a machine for a task, or a container of a given image."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.contract import Image
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.placed import Plan, SandboxOrder
from agent_env_core.steps.placing import PlacingStep, default_image


class DeploySandbox(PlacingStep):
    """Makes a sandbox. A machine (``vm``) is made when a step first acts in it, since containers need none around them.

    Attributes:
        sandbox_name: Its name in the task.
        sandbox_mode: ``vm``: a sandbox of the default image. ``container``: one of ``image``.
        image: A reference that names its registry.
        port: The port that a container serves.
        exposed_ports: Ports of a machine that may be reached from outside.
    """

    references: ClassVar[tuple[Reference, ...]] = ()

    sandbox_name: str = Field(pattern=r"^[^\s/]+$")
    sandbox_mode: Literal["vm", "container"]
    image: str | None = Field(default=None, min_length=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    exposed_ports: list[int] = Field(default_factory=list)
    boot_mode: str | None = None

    @model_validator(mode="after")
    def _a_container_has_an_image(self) -> DeploySandbox:
        if self.sandbox_mode == "container" and (self.image is None or self.port is None):
            raise ValueError("a container needs image and port")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what only a real virtual machine has."""
        return super().refusals(played) + self.unsupported(boot_mode=None)

    def orders(self, plan: Plan) -> Sequence[SandboxOrder]:
        """What it makes for sure, or for a step that acts in the machine itself."""
        return (self.asked(plan.max_ttl),) if self.sandbox_mode == "container" or self._is_used(plan) else ()

    def _is_used(self, plan: Plan) -> bool:
        return any(
            getattr(step, "sandbox_name", None) == self.sandbox_name and not getattr(step, "container_name", None)
            for step in plan.steps
            if step.id != self.id
        )

    def asked(self, max_ttl: float | None) -> SandboxOrder:
        """The sandbox it stands for."""
        image = Image(ref=self.image) if self.image is not None else default_image()
        ports = [*self.exposed_ports, *([self.port] if self.port is not None else [])]
        return self.order(image, max_ttl, ports=dict.fromkeys(ports))

    async def run(self, run: RunContext) -> None:
        """Makes a container; remembers a machine."""
        if self.sandbox_name in run.sandboxes or self.sandbox_name in run.places.machines:
            raise EpisodeError(
                "deploy", f"there is already a sandbox {self.sandbox_name!r}; give this one another name"
            )
        order = self.asked(run.max_ttl)
        if self.sandbox_mode == "vm":
            run.places.machines[self.sandbox_name] = order
        else:
            await run.places.make(self.sandbox_name, "container", order)

    async def undo(self, run: RunContext) -> None:
        """Ends it, and what is in it."""
        run.places.machines.pop(self.sandbox_name, None)
        for name in [n for n in run.sandboxes if n == self.sandbox_name or n.startswith(f"{self.sandbox_name}/")]:
            await run.places.end(name)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``deploy_sandbox``."""
    register("deploy_sandbox", DeploySandbox)

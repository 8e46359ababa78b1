"""``run_docker_container``: a container of an image that the bundle brings.

The format runs it inside the machine of ``sandbox_name``. Here it is a sandbox of the provider beside that machine: no
Docker runs inside Docker, and it works on providers that have no Docker at all.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError, Phase
from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.contract import Image
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.deploy_sandbox import DeploySandbox
from agent_env_core.steps.placed import PlacedSandbox, Plan, SandboxOrder
from agent_env_core.steps.shell import said, shell

NOTES = "deployed_docker_containers"
DEFAULT_CONTAINER = "task-container"
READY_SECONDS = 180.0
"""Seconds that ``ready_command`` may go on failing."""
FIRST_PAUSE, PAUSE_GROWTH, LAST_PAUSE = 0.05, 1.3, 2.0
_START_SECONDS = 60.0
# The command's own output goes nowhere: a pipe that nobody reads would stop it, and a file would grow without end.
_BEHIND = '"$@" >/dev/null 2>&1 </dev/null &'


class RunDockerContainer(TaskStep):
    """Builds an image and starts a container of it, which stays until the run ends, whatever its command does.

    Attributes:
        sandbox_name: The machine; the container gets its limits and its time to live.
        docker_context_artifact_id: The build context.
        dockerfile_path: The Dockerfile in it.
        container_name: The container's name on that machine.
        env_vars: Variables of everything that runs in it, on top of the machine's.
        ports: Ports that may be reached from outside, as numbers or as ``host:container``.
        command_override: What is started in it in place of the Dockerfile's own command: a line of shell, or an argv.
        keep_alive_with_base_command: The container outlives the Dockerfile's command; so it does in any case.
        ready_command: A line of shell that succeeds once the container can be used.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("docker_context_artifact_id", "artifact", artifact_type="file_artifact_universe"),
    )
    phase: ClassVar[Phase] = "deploy"

    sandbox_name: str = Field(pattern=r"^[^\s/]+$")
    docker_context_artifact_id: str | None = Field(default=None, min_length=1)
    docker_context_url: str | None = None
    dockerfile_path: str = Field(default="Dockerfile", min_length=1)
    container_name: str = Field(default=DEFAULT_CONTAINER, pattern=r"^[^\s/]+$")
    image_tag: str | None = None
    ports: list[int | str] = Field(default_factory=list)
    env_vars: dict[str, str] = Field(default_factory=dict)
    build_args: dict[str, Any] | None = None
    command_override: str | list[str] | None = None
    keep_alive_with_base_command: Any = None
    network: str | None = None
    extra_networks: list[Any] | None = None
    ready_command: str | list[str] | None = None
    devices: list[Any] | None = None
    cap_add: list[Any] | None = None
    privileged: bool = False
    volumes: Any = None
    shm_size: Any = None

    @model_validator(mode="after")
    def _fits_together(self) -> RunDockerContainer:
        if (self.docker_context_artifact_id is None) == (self.docker_context_url is None):
            raise ValueError("set exactly one of docker_context_artifact_id and docker_context_url")
        if self.command_override and self.keep_alive_with_base_command:
            raise ValueError("set one of command_override and keep_alive_with_base_command, not both")
        for port in self.ports:
            if not str(port).rpartition(":")[2].removesuffix("/tcp").isdigit():
                raise ValueError(f"ports: {port!r} is neither a number nor host:container")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what would give the container more of its host than sandboxes get, or what no provider is told."""
        lines = super().refusals(played)
        if self.network not in (None, "bridge", "none"):
            lines.append(f"network={self.network!r}: a container has the open network or none")
        for name in ("docker_context_url", "build_args", "extra_networks", "devices", "cap_add", "volumes", "shm_size"):
            if value := getattr(self, name):
                lines.append(f"{name}={value!r} can't be had in a sandbox")
        return lines + (["privileged=True can't be had in a sandbox"] if self.privileged else [])

    def orders(self, plan: Plan) -> Sequence[SandboxOrder]:
        """The container, with the limits of the machine it is on."""
        for step in plan.steps:
            if isinstance(step, DeploySandbox) and step.sandbox_name == self.sandbox_name:
                artifact = plan.bundle.artifacts[self.docker_context_artifact_id or ""]
                return (self._order(step.asked(plan.max_ttl), Image(None, artifact.path, self.dockerfile_path)),)
        return ()

    def _order(self, machine: SandboxOrder, image: Image) -> SandboxOrder:
        ports = tuple(int(str(port).rpartition(":")[2].removesuffix("/tcp")) for port in self.ports)
        network = "none" if self.network == "none" else machine.network
        return replace(machine, image=image, env={**machine.env, **self.env_vars}, ports=ports, network=network)

    async def run(self, run: RunContext) -> None:
        """Starts it, and waits until it is ready."""
        machine = run.places.machines.get(self.sandbox_name)
        if machine is None and self.sandbox_name in run.sandboxes:
            machine = run.sandboxes[self.sandbox_name].order
        if machine is None:
            known = ", ".join(sorted({*run.places.machines, *run.sandboxes})) or "none"
            reason = f"there is no sandbox {self.sandbox_name!r} (there are: {known})"
            raise EpisodeError("deploy", f"{reason}: a deploy_sandbox step must come before this one")
        folder = run.bundle.artifacts[self.docker_context_artifact_id or ""].path
        order = self._order(machine, Image(None, folder, self.dockerfile_path))
        placed = await run.places.make(self._name, "container", order)
        await self._start(placed, folder / self.dockerfile_path)
        await self._ready(placed)
        note = {"step_id": self.id, "sandbox_name": self.sandbox_name, "container_name": self.container_name}
        run.note(NOTES, {**note, "sandbox_id": placed.sandbox.id})

    async def _start(self, placed: PlacedSandbox, dockerfile: Any) -> None:
        from agent_env_core.bundle.dockerfile import read_dockerfile

        override = self.command_override
        if override is None:
            argv = list(read_dockerfile(dockerfile).start_command())
        else:
            argv = ["sh", "-c", override] if isinstance(override, str) else override
        if argv:
            await placed.sandbox.exec(["sh", "-c", _BEHIND, "sh", *argv], timeout=_START_SECONDS)

    async def _ready(self, placed: PlacedSandbox) -> None:
        if self.ready_command is None:
            return
        line = self.ready_command if isinstance(self.ready_command, str) else shlex.join(self.ready_command)
        pause = FIRST_PAUSE
        result = None
        try:
            async with asyncio.timeout(READY_SECONDS):
                while (result := await shell(placed, line)).exit_code != 0:
                    await asyncio.sleep(pause)
                    pause = min(pause * PAUSE_GROWTH, LAST_PAUSE)
        except TimeoutError as exc:
            last = f": {said(result)}" if result is not None else ""
            reason = f"ready_command of {placed.name!r} didn't succeed within {READY_SECONDS:g}s{last}"
            raise EpisodeError("deploy", reason, retryable=True) from exc

    @property
    def _name(self) -> str:
        return f"{self.sandbox_name}/{self.container_name}"

    async def undo(self, run: RunContext) -> None:
        """Ends it."""
        await run.places.end(self._name)
        run.forget(NOTES, self.id)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``run_docker_container``."""
    register("run_docker_container", RunDockerContainer)

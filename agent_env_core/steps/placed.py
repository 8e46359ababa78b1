"""Sandboxes that steps act in, beside those of envs: what to make, and what was made."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agent_env_core.errors import EpisodeError
from agent_env_core.sandbox.contract import Capabilities, Image, Sandbox, SandboxSpec

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle
    from agent_env_core.steps.base import TaskStep

Network = Literal["open", "none"] | tuple[str, ...]
Kind = Literal["vm", "container", "agent"]

IN_AGENT_SANDBOX = ("load_artifact", "run_code", "add_skills", "verify_sandbox", "collect_artifacts")
"""Step types that act in an agent's sandbox when they name it, or name no other place."""
NAMING_ONLY = "load_artifact"
"""The one of them that never means an agent by saying nothing."""
DEFAULT_AGENT = "default-agent"
NO_PROVIDER = Capabilities(isolation="none", private_files=False)
"""What may be counted on where nothing is known of the provider: nothing."""


@dataclass(frozen=True)
class SandboxOrder:
    """A sandbox that a step asks for. It has no main process of its own: what runs in it is started by commands.

    Attributes:
        image: What it starts from.
        ttl: Seconds until it ends by itself, unless its lease is renewed.
        env: Variables of everything that runs in it.
        ports: Ports that may be asked for from outside.
        cpu: Cores.
        memory_mb: MiB.
        network: ``"open"``, ``"none"``, or the hosts that may be reached.
    """

    image: Image
    ttl: float
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    ports: tuple[int, ...] = ()
    cpu: float | None = None
    memory_mb: int | None = None
    network: Network = "open"

    def spec(self, prepared: str) -> SandboxSpec:
        """What to ask a provider for, with the image as it prepared it."""
        return SandboxSpec(
            image=prepared,
            ttl=self.ttl,
            env=self.env,
            ports=self.ports,
            cpu=self.cpu,
            memory_mb=self.memory_mb,
            network=self.network,
        )


@dataclass(frozen=True)
class Plan:
    """What a step must know of its task to say which sandboxes it will make.

    Attributes:
        bundle: Where the task's entities are.
        steps: All steps of the task.
        workers: The agents that work in a sandbox.
        max_ttl: The longest a sandbox may live there, in seconds; None is without limit.
    """

    bundle: Bundle
    steps: Sequence[TaskStep]
    workers: frozenset[str]
    max_ttl: float | None = None


@dataclass(frozen=True)
class File:
    """A file on its way into a sandbox or out of it.

    Attributes:
        path: A POSIX path relative to some folder.
        data: What is in it.
        executable: Whether it may be run.
        link: Where it points, if it is a symbolic link; then there is no data.
    """

    path: str
    data: bytes
    executable: bool = False
    link: str = ""


@dataclass(frozen=True)
class Load:
    """Files that were put into a sandbox, kept so that they can be put there again.

    Attributes:
        destination: The folder, an absolute path.
        files: What was put there.
        turns: How many turns an agent had been at work there before.
        step_id: The step that put it there.
    """

    destination: str
    files: tuple[File, ...]
    turns: int
    step_id: str


@dataclass(eq=False)
class PlacedSandbox:
    """A sandbox of one run.

    Attributes:
        name: ``vm``, ``vm/container``, or the agent's name.
        kind: What the task calls it.
        sandbox: The handle.
        order: What it was made from; another one like it can be had.
        capabilities: What its provider can do.
        workdir: Where an agent's commands run; None is the image's own folder.
        shell: How a line of shell is run in it; known once :func:`~agent_env_core.steps.shell.probe` looked.
        settled: The processes that stay when those of an agent are ended, as ``number:start``; None before the first
            look, and where processes of others can be seen from inside, so that nothing may be ended by elimination.
        probed: Whether that look was taken.
        turns: How many turns an agent has been at work in it.
        loads: The files that steps put into it, in order.
        mark: Stands in the environment of every command of an agent.
    """

    name: str
    kind: Kind
    sandbox: Sandbox
    order: SandboxOrder
    capabilities: Capabilities
    workdir: str | None = None
    shell: str = "sh"
    settled: frozenset[str] | None = None
    probed: bool = False
    turns: int = 0
    loads: list[Load] = field(default_factory=list)
    mark: str = field(default_factory=lambda: secrets.token_hex(16))

    def late(self, load: Load) -> bool:
        """Whether files were loaded after all of an agent's work: those are what it is judged by."""
        return 0 < self.turns == load.turns


@dataclass(frozen=True)
class PlacedSkill:
    """A skill in an agent's sandbox: its name, what it is for, and the path of its ``SKILL.md`` there."""

    name: str
    description: str
    path: str


async def _makes_none(order: SandboxOrder) -> Sandbox:
    raise EpisodeError("deploy", f"a sandbox of {order.image} can't be made: nothing makes sandboxes for this run")


async def _ends_none(sandbox: Sandbox) -> None:
    raise EpisodeError("teardown", f"nobody can end the sandbox {sandbox.id}")


@dataclass(eq=False)
class Places:
    """The sandboxes of a run that steps act in, beside those of envs.

    Attributes:
        create: Makes a sandbox that lives as long as the run.
        destroy: Ends one before that.
        capabilities: What its provider can do.
        workers: The agents that work in a sandbox.
        standing: The sandboxes that stand, by name: ``vm``, ``vm/container``, or an agent's name.
        machines: What ``deploy_sandbox`` asked for, by name; each is made when something first acts in it.
    """

    create: Callable[[SandboxOrder], Awaitable[Sandbox]] = _makes_none
    destroy: Callable[[Sandbox], Awaitable[None]] = _ends_none
    capabilities: Capabilities = NO_PROVIDER
    workers: frozenset[str] = frozenset()
    standing: dict[str, PlacedSandbox] = field(default_factory=dict)
    machines: dict[str, SandboxOrder] = field(default_factory=dict)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def make(self, name: str, kind: Kind, order: SandboxOrder, workdir: str | None = None) -> PlacedSandbox:
        """Makes a sandbox and remembers it by ``name``.

        Raises:
            EpisodeError: There is one of that name, or this run makes none.
            SandboxError: As the provider raises it.
        """
        if name in self.standing:
            raise EpisodeError("deploy", f"there is already a sandbox {name!r}; give this one another name")
        made = PlacedSandbox(name, kind, await self.create(order), order, self.capabilities, workdir)
        return self.standing.setdefault(name, made)

    async def end(self, name: str) -> None:
        """Ends a sandbox; nothing happens where there is none of that name."""
        placed = self.standing.pop(name, None)
        if placed is not None:
            await self.destroy(placed.sandbox)

    def forget_loads(self, step_id: str) -> None:
        """Forgets which files a step put anywhere: it is to run again. The files stay until it overwrites them."""
        for placed in self.standing.values():
            placed.loads[:] = [load for load in placed.loads if load.step_id != step_id]

    async def find(self, sandbox_name: str, container_name: str | None = None) -> PlacedSandbox:
        """The sandbox that a step means; a machine that nothing has acted in so far is made now.

        Raises:
            EpisodeError: No step deployed it.
            SandboxError: As the provider raises it.
        """
        name = f"{sandbox_name}/{container_name}" if container_name else sandbox_name
        async with self._making:
            if name in self.standing:
                return self.standing[name]
            if name in self.machines:
                return await self.make(name, "vm", self.machines[name])
        known = ", ".join(sorted({*self.standing, *self.machines})) or "none"
        fix = f"a {'run_docker_container' if container_name else 'deploy_sandbox'} step must come before this one"
        raise EpisodeError("setup", f"there is no sandbox {name!r} (there are: {known}): {fix}")


def works_in_sandbox(steps: Sequence[Mapping[str, Any]], agent: str) -> bool:
    """Whether steps act in the sandbox of ``agent``, so that it must have one, and a ``bash`` in its turns."""
    return any(_acts(step, agent) for step in steps)


def _acts(step: Mapping[str, Any], agent: str) -> bool:
    kind, named = step.get("type"), step.get("agent_name")
    if kind == "install_agent":
        return (named or DEFAULT_AGENT) == agent
    if kind == "deploy_agent":
        return (named or DEFAULT_AGENT) == agent and bool(step.get("skills"))
    if kind not in IN_AGENT_SANDBOX or step.get("sandbox_name") or (step.get("env_id") and not named):
        return False
    return (named or ("" if kind == NAMING_ONLY else DEFAULT_AGENT)) == agent

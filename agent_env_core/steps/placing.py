"""What steps that make sandboxes have in common: how the format's fields become an order."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from agent_env_core.errors import Phase, Unsupported
from agent_env_core.sandbox.contract import Image
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.placed import Network, SandboxOrder

IMAGE_VARIABLE = "AGENT_ENV_AGENT_IMAGE"
"""Names another image for agents and machines: a folder with a Dockerfile, or a reference that names its registry."""
IMAGE_FOLDER = Path(__file__).parent / "agent_image"


def default_image() -> Image:
    """Where an agent works, and what a machine is, when the task brings no image of its own."""
    named = os.environ.get(IMAGE_VARIABLE, "").strip()
    if not named:
        return Image(context=IMAGE_FOLDER)
    folder = Path(named).expanduser()
    return Image(context=folder.resolve()) if folder.is_dir() else Image(ref=named)


class PlacingStep(TaskStep):
    """A step that makes a sandbox.

    Of the format's fields, ``sandbox_type`` is overridden by the server's own ``sandbox=``, and ``disk_size_gb`` is met
    by sandboxes, whose disks have no such limit.

    Attributes:
        ttl_seconds: After that long the sandbox ends by itself, unless the episode lives and its lease can be renewed.
        cpu: Cores; refused by a provider that can't hold a sandbox to them.
        memory_mb: MiB; the same.
        network_policy: ``open``, ``none``, or the hosts that may be reached; None is open.
        env_vars: Variables of everything that runs in it.
    """

    phase: ClassVar[Phase] = "deploy"

    ttl_seconds: float = Field(default=7200, gt=0, allow_inf_nan=False)
    cpu: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    network_policy: Any = None
    env_vars: dict[str, str] = Field(default_factory=dict)

    def order(self, image: Image, max_ttl: float | None, *, ports: Collection[int] = ()) -> SandboxOrder:
        """What it asks of a provider whose sandboxes live ``max_ttl`` seconds at most.

        Raises:
            Unsupported: Its network policy can't be understood.
        """
        asked = "ttl_seconds" in self.model_fields_set
        ttl = self.ttl_seconds if asked or max_ttl is None else min(self.ttl_seconds, max_ttl)
        return SandboxOrder(image, ttl, self.env_vars, tuple(ports), self.cpu, self.memory_mb, self._network())

    def _network(self) -> Network:
        policy = self.network_policy
        if policy in (None, "open"):
            return "open"
        if policy == "none":
            return "none"
        if isinstance(policy, list) and policy and all(isinstance(host, str) for host in policy):
            return tuple(policy)
        raise Unsupported(f"network_policy={policy!r}: it may be 'open', 'none', or a list of hosts")

"""Limits that an engine takes and doesn't keep, without a word: without root, on control groups v1 or not delegated."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from agent_env_core.errors import Unsupported
from agent_env_core.sandbox.contract import SandboxSpec

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

_FLAGS = {"memory": ("MemoryLimit",), "cores": ("CpuCfsQuota", "CPUCfsQuota"), "processes": ("PidsLimit",)}
_FIX = "an engine with root keeps them, and so does one without where cgroup v2 is delegated to its user"


def unkept(client: APIClient) -> Collection[str]:
    """What of memory, cores and processes this engine does not limit; the log says so."""
    info = client.info()
    lost = [what for what, flags in _FLAGS.items() if any(info.get(flag) is False for flag in flags)]
    if lost:
        logger.warning("docker: this engine does not limit the %s of sandboxes; %s", ", ".join(lost), _FIX)
    return lost


def refuse(lost: Collection[str], spec: SandboxSpec) -> None:
    """Refuses a limit that a sandbox asks for and that would not be kept.

    Raises:
        Unsupported: There is one.
    """
    for what, asked in (("memory", spec.memory_mb), ("cores", spec.cpu)):
        if asked and what in lost:
            raise Unsupported(f"docker: {what}={asked:g} can't be kept: this engine does not limit {what}; {_FIX}")

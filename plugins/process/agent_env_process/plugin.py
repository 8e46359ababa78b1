"""Sandboxes without a daemon: env servers as plain processes of this machine.

Covered:
    A private folder for the image's files, with ``HOME`` and ``TMPDIR`` in it; an environment built from nothing, so
    no variable of the server gets in; a port of its own on loopback; everything a sandbox started ends with it, and
    ends when the server is killed; images as cached Python environments, built from simple Dockerfiles.

Not covered:
    Isolation. Sandboxes run as you and see this machine's files, processes and network. A program that writes to an
    absolute path that only its code knows (``/tmp/x``) shares that file with every other sandbox
    (``private_files=False``). CPU, memory and network are not limited. The Python environment of an image is shared by
    its sandboxes. A process that drops its environment *and* outlives its parent may not be found when its sandbox
    ends. Run only code that you would run by hand; ``docker`` isolates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_core import hookimpl

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import SandboxProvider


@hookimpl
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers ``process``."""
    from agent_env_process.provider import ProcessProvider

    register("process", ProcessProvider)

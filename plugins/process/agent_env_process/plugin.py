"""Sandboxes without a daemon: env servers as processes of this machine.

With namespaces (bubblewrap, or made here; whichever the machine allows)

Covered:
    Files: each sandbox has a root of its own. Of this machine it sees programs, libraries, certificates and the image's
    packages, all read-only; homes, keys (in the kernel too), sockets and other sandboxes aren't there. Processes: it
    sees its own only, and all of them end with the first one, also when the server is killed. Rights: none, for root
    too. Where a task asks for it, no network.

Not covered:
    The kernel is shared. With an open network so are loopback, abstract sockets and vsock. Disk is not limited; memory,
    cores and processes only where the server may make control groups, and processes where the kernel counts them for
    each sandbox (Linux 5.14, a user who isn't root).

Without them

Covered:
    A private folder for the image's files, with ``HOME`` and ``TMPDIR`` in it. Everything a sandbox started ends with
    it, and ends when the server is killed.

Not covered:
    Isolation. Sandboxes run as you and see this machine's files, processes and network. A program that writes to an
    absolute path that only its code knows (``/tmp/x``) shares that file with every other sandbox
    (``private_files=False``). A process that drops its environment *and* outlives its parent may not be found when its
    sandbox ends. Run only code that you would run by hand.

In both, the environment is built from nothing, so no variable of the server gets in, and each sandbox has ports of its
own on loopback. Images are cached Python environments and files, made from simple Dockerfiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_core import hookimpl
from agent_env_process.settings import Settings

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import SandboxProvider


class _Factory:
    """Makes the provider; ``agent-env sandbox show process`` prints the table of its settings."""

    settings_model = Settings

    def __call__(self, config: Mapping[str, Any]) -> SandboxProvider:
        from agent_env_process.provider import ProcessProvider

        return ProcessProvider(config)


@hookimpl
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers ``process``."""
    register("process", _Factory())

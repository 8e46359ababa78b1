"""The end of a sandbox: its container is removed, whoever else is about to do that."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import Unavailable, describe
from agent_env_core.sandbox.leases import PROVIDER_LABEL
from agent_env_docker import tunnel
from agent_env_docker.failure import is_id, short, translated, words

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

PATIENCE = 10.0
"""Seconds that a removal by another call may take."""


def discard(client: APIClient, sandbox_id: str) -> None:
    """Removes what a failed or cancelled start has made."""
    try:
        remove(client, sandbox_id)
    except Exception as exc:  # its lease ends it then
        logger.warning("the container %s could not be removed: %s", short(sandbox_id), describe(exc))


def _host_ports(info: dict[str, Any]) -> Iterator[int]:
    """The ports of the engine's machine that lead into a container."""
    for bindings in (info["NetworkSettings"].get("Ports") or {}).values():
        yield from (int(binding["HostPort"]) for binding in bindings or () if binding.get("HostPort"))


def remove(client: APIClient, sandbox_id: str, through: tunnel.Tunnel | None = None) -> bool:
    """Removes a sandbox with its anonymous volumes; False where there is none, or where another call has removed it.

    Args:
        client: The engine's.
        sandbox_id: Which.
        through: What may lead to its ports.
    """
    from docker.errors import APIError, NotFound

    if not is_id(sandbox_id):
        return False
    deadline = time.monotonic() + PATIENCE
    pause = 0.01
    with translated(f"removing the sandbox {short(sandbox_id)}"):
        while True:
            try:
                info = client.inspect_container(sandbox_id)
                if PROVIDER_LABEL not in (info["Config"].get("Labels") or {}):
                    return False  # somebody else's container
                if through is not None:  # before the engine may give its ports to the next
                    through.release(*_host_ports(info))
                client.remove_container(sandbox_id, v=True, force=True)
            except NotFound:
                return False
            except APIError as exc:
                if "no such container" in words(exc):  # so says Podman, of one that has gone since it was looked up
                    return False
                if "already in progress" not in words(exc):
                    raise
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"docker: the sandbox {short(sandbox_id)} is being removed by another call, which does not end"
                    ) from exc
            else:
                return True
            # By another call, which may fail and leave it to this one.
            time.sleep(pause)
            pause = min(0.2, pause * 2)

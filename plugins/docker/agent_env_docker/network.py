"""The network that sandboxes share: out to the world, and not to each other.

One bridge serves all sandboxes of an engine, since an engine has addresses for about thirty. Between its containers
nothing passes, so no episode reaches another's port; the ports that are published on the host are reached as on any
bridge. It is made once, carries our label, and stays: making one takes longer than starting a container.

Podman's bridges can't do that. There each sandbox has a network stack of its own in user space (slirp4netns, or pasta
without root), which also starts faster than a container on a bridge of Podman's.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agent_env_core.errors import ConfigError, describe
from agent_env_core.sandbox.locks import lock_path, locked
from agent_env_docker.failure import words

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

NETWORK = "agent-env"
NETWORK_LABEL = "agent-env.network"
_APART = "com.docker.network.bridge.enable_icc"


def ensure(client: APIClient) -> str | None:
    """The network mode of sandboxes, which works when this returns; None where the engine can't keep them apart.

    Raises:
        ConfigError: A network of that name is somebody else's.
    """
    from docker.errors import APIError

    if _is_podman(client):  # it takes the option of the bridge and doesn't keep it
        return _own_stack(client)
    if _is_there(client):
        return NETWORK
    try:
        # An engine may let two networks of one name come to be, and then knows neither by it.
        with locked(lock_path("docker", NETWORK)):
            if _is_there(client):
                return NETWORK
            options, labels = {_APART: "false"}, {NETWORK_LABEL: "1"}
            client.create_network(NETWORK, driver="bridge", options=options, labels=labels, check_duplicate=True)
    except APIError as exc:
        if _is_there(client):  # made by another user or machine meanwhile
            return NETWORK
        if "option" not in words(exc).lower():
            raise
        logger.warning("docker: sandboxes can reach each other's ports: this engine says %r", words(exc))
        return None
    if not _is_kept(client):
        logger.warning(
            "docker: sandboxes can reach each other's ports until br_netfilter is loaded on the engine's machine"
        )
    return NETWORK


def remove_unused(client: APIClient) -> bool:
    """Removes the network where nothing uses it."""
    from docker.errors import APIError

    try:
        if not _is_there(client):
            return False
        client.remove_network(NETWORK)
    except APIError as exc:
        logger.debug("the network stays: %s", describe(exc))
        return False
    return True


def _is_podman(client: APIClient) -> bool:
    parts = client.version(api_version=False).get("Components") or ()
    return any(str(part.get("Name")).startswith("Podman") for part in parts)


def _own_stack(client: APIClient) -> str | None:
    """The mode in which Podman gives a container a network stack of its own."""
    answer = client.get(f"{client.base_url}/v4.0.0/libpod/info", timeout=client.timeout)
    answer.raise_for_status()
    host = answer.json()["host"]
    modes = ("slirp4netns", "pasta") if host["security"]["rootless"] else ("slirp4netns",)  # pasta takes no root
    for mode in modes:
        if (host.get(mode) or {}).get("executable"):
            return mode
    logger.warning(
        "docker: sandboxes can reach each other's ports: Podman can't keep containers of a bridge apart; install "
        "slirp4netns on the engine's machine"
    )
    return None


def _is_there(client: APIClient) -> bool:
    for network in client.networks(names=[NETWORK]):
        if network["Name"] != NETWORK:  # the filter takes parts of names
            continue
        if NETWORK_LABEL not in (network.get("Labels") or {}) or (network.get("Options") or {}).get(_APART) != "false":
            raise ConfigError(
                f"docker: the network {NETWORK!r} is not one that agent-env made, and may let sandboxes reach each "
                f"other; rename or remove it (`docker network rm {NETWORK}`)"
            )
        return True
    return False


def _is_kept(client: APIClient) -> bool:
    """Whether packets between containers of one bridge are filtered; engines that don't say so load what they need."""
    return bool(client.info().get("BridgeNfIptables", True))

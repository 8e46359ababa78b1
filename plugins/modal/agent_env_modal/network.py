"""From a sandbox's network policy to what Modal is asked for."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TypedDict

from agent_env_core.sandbox.contract import SandboxSpec


class Policy(TypedDict, total=False):
    """Arguments of ``Sandbox.create``."""

    block_network: bool
    outbound_cidr_allowlist: list[str]
    outbound_domain_allowlist: list[str]


def policy(spec: SandboxSpec) -> Policy:
    """The policy of ``spec``; hosts of an allow-list are addresses, blocks of them, or names."""
    if spec.network == "open":
        return {}
    if spec.network == "none" and not spec.ports:
        return {"block_network": True}
    # Modal's block keeps everybody out as well: a sandbox that is to be reached has an allow-list of nothing instead.
    hosts = () if spec.network == "none" else spec.network
    blocks = {host: block for host in hosts if (block := _block(host))}
    return {
        "outbound_cidr_allowlist": list(blocks.values()),
        "outbound_domain_allowlist": [host for host in hosts if host not in blocks],
    }


def _block(host: str) -> str | None:
    try:
        return str(ip_network(host, strict=False))
    except ValueError:
        return None

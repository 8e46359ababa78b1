"""Several env hosts that serve the same tasks: what they must agree on, and which of them a session goes to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_env_core.client.address import Address
from agent_env_core.client.connection import Connection, Full, held
from agent_env_core.client.server import Info, Server, Toolset
from agent_env_core.errors import AgentEnvError, CapacityError, EpisodeError

ROW = ("id", "index", "prompt", "system_prompt", "toolset")
"""What two hosts must say alike of a task."""


async def connect(hosts: Sequence[Address]) -> Connection:
    """Opens a socket on the host with the most room, or on the next one where that is full or doesn't answer.

    Raises:
        CapacityError: Every host is at its limit.
        EpisodeError: None has room, and one of them doesn't answer for now.
        AgentEnvError: A host refuses us.
    """
    full: list[Full] = []
    silent: EpisodeError | None = None
    for host in sorted(hosts, key=lambda host: (held[host.url] + 1) / (host.limit or 1)):
        try:
            return await Connection.open(host)
        except Full as exc:
            full.append(exc)
        except EpisodeError as exc:
            silent = exc
    if silent is not None:
        raise silent
    raise _at_capacity(full)


def _at_capacity(full: Sequence[Full]) -> CapacityError:
    if len(full) == 1:
        where = f"the server at {full[0].url} is at its limit of {full[0].limit} sessions at once"
    else:
        limits = ", ".join(f"{one.url}: {one.limit}" for one in sorted(full, key=lambda one: one.url))
        where = f"every server is at its limit of sessions at once ({limits})"
    return CapacityError(
        f"{where}, and the trainer holds one per rollout it generates at once: serve the bundle with"
        " MAX_CONCURRENT_ENVS (or max_concurrent_envs=) at least that many, or generate fewer rollouts at once"
    )


async def reconnect(hosts: Sequence[Address], seconds: float) -> Connection:
    """Connects again after a connection was lost, with patience: a server may be restarting, or notice us gone late.

    Raises:
        EpisodeError: It didn't work for ``seconds``.
        AgentEnvError: A host refuses us for good.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    pause = 0.05
    while True:
        try:
            return await connect(hosts)
        except (CapacityError, EpisodeError) as exc:
            if loop.time() + pause > deadline:
                raise EpisodeError("queue", exc.reason if isinstance(exc, EpisodeError) else str(exc)) from None
        await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - spreads clients, guards nothing
        pause = min(2 * pause, 2.0)


class Hosts:
    """The HTTP side of one server, or of several that serve the same.

    Args:
        servers: The servers.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def info(self) -> tuple[Info, tuple[Address, ...]]:
        """What the servers serve, with the sessions of all of them, and their addresses with the limit of each.

        Raises:
            AgentEnvError: They don't serve the same; the message names the difference. And as for ``Server.info``.
        """
        infos = [server.info() for server in self._servers]
        self._agree("the protocol", ["OpenEnv alone" if info.plain else "agent-env" for info in infos])
        self._agree("the bundle", [info.name for info in infos])
        self._agree("the splits", [info.splits for info in infos])
        self._agree("the scores", [info.score_ids for info in infos])
        self._agree("the toolsets", [info.toolsets for info in infos])
        limits = [info.max_concurrent_envs for info in infos]
        known = [limit for limit in limits if limit is not None]
        total = sum(known) if len(known) == len(limits) else None
        hosts = [replace(server.address, limit=limit) for server, limit in zip(self._servers, limits, strict=True)]
        return replace(infos[0], max_concurrent_envs=total), tuple(hosts)

    def toolsets(self) -> tuple[Toolset, ...]:
        """As ``Server.toolsets``, the same for every server.

        Raises:
            AgentEnvError: They don't offer the same tools.
        """
        told = [server.toolsets() for server in self._servers]
        for each in zip(*told, strict=True):
            self._agree(f"the tools of {each[0].name!r}", [list(toolset.offered.names) for toolset in each])
            self._agree(f"the descriptions or schemas of the tools of {each[0].name!r}", [one.digest for one in each])
        return told[0]

    def rows(self, info: Info, split: str) -> Sequence[Mapping[str, Any]]:
        """As ``Server.rows``, the same for every server.

        Raises:
            AgentEnvError: They don't serve the same tasks; the message names the first row that differs.
        """
        told = [server.rows(info, split) for server in self._servers]
        for index, each in enumerate(zip(*told, strict=True)):
            for key in ROW:
                self._agree(f"the {key} of row {index} of the split {split!r}", [row.get(key) for row in each])
        return told[0]

    def _agree(self, what: str, told: Sequence[object]) -> None:
        for server, other in zip(self._servers[1:], told[1:], strict=True):
            if other != told[0]:
                here, there = self._servers[0].address.url, server.address.url
                raise AgentEnvError(
                    f"{here} and {there} don't serve the same: {what}: {_short(told[0])} here, {_short(other)}"
                    " there; serve the same version of the bundle on each host, in a folder of the same path"
                )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"

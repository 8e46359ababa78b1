"""Who owns a sandbox, until when, and who may take it away.

Every sandbox carries a *lease*: labels that its provider gives back in ``list``. A sandbox is reaped only where its
owner is provably dead on this machine, or where the lease ran out and nobody here can see the owner live. A living
neighbour's sandbox is never touched, not even by a run that shares its provider, account or user.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from agent_env_core.errors import describe
from agent_env_core.sandbox.machine import boot_id, host_id, process_is_dead, process_start

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import SandboxInfo, SandboxProvider

PROVIDER_LABEL = "agent-env.provider"
"""The provider's name, on an engine or account that others use as well: what has none isn't ours."""

RUN_LABEL = "agent-env.run"
OWNER_LABEL = "agent-env.owner"
EXPIRES_LABEL = "agent-env.expires"
CREATED_LABEL = "agent-env.created"
ENV_LABEL = "agent-env.env"
"""The env's name, where the sandbox is an env's; for people only."""

EXPIRY_GRACE = 60.0
"""Seconds past a lease's end before anyone else acts on it: room for clocks that differ and for a late renewal."""

KILL_TIMEOUT = 30.0
"""Seconds one ``kill`` of a sweep may take."""


@dataclass(frozen=True)
class Owner:
    """A process, named so that no other one on any machine at any time has the same name.

    Attributes:
        host: See :func:`~agent_env_core.sandbox.machine.host_id`.
        boot: See :func:`~agent_env_core.sandbox.machine.boot_id`.
        pid: The process number.
        start: When the process started; ``unknown`` where the system doesn't tell.
    """

    host: str
    boot: str
    pid: int
    start: str

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return _owner(os.getpid())

    @classmethod
    def parse(cls, text: str) -> Owner | None:
        """Reads a label; None for one that is not ours."""
        try:
            host, rest = text.split("/")
            boot, pid, start = rest.split(":")
            return cls(host, boot, int(pid), start)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.host}/{self.boot}:{self.pid}:{self.start}"


@cache
def _owner(pid: int) -> Owner:  # keyed by the number: a forked child is another owner
    return Owner(host_id(), boot_id(), pid, process_start(pid) or "unknown")


def owner_is_dead(owner: Owner) -> bool:
    """Whether ``owner`` has certainly ended."""
    return _can_be_seen(owner) and process_is_dead(owner.pid, owner.start)


def _can_be_seen(owner: Owner) -> bool:
    """Whether it is one of this machine since its last start; for all others the lease's end decides."""
    return (owner.host, owner.boot) == (host_id(), boot_id()) and "unknown" not in (owner.boot, owner.start)


def lease_labels(owner: Owner, run_id: str, ttl: float, *, now: float | None = None) -> dict[str, str]:
    """The labels of a lease of ``ttl`` seconds from ``now`` (epoch seconds; by default the present)."""
    return {
        RUN_LABEL: run_id,
        OWNER_LABEL: str(owner),
        CREATED_LABEL: expires_label(0, now=now),
        EXPIRES_LABEL: expires_label(ttl, now=now),
    }


def expires_label(ttl: float, *, now: float | None = None) -> str:
    """The value of the expiry label for a lease of ``ttl`` seconds: what ``extend`` must make ``list`` report."""
    return f"{(time.time() if now is None else now) + ttl:.0f}"


def expiry(labels: Mapping[str, str]) -> float | None:
    """When a lease ends, in epoch seconds; None where the labels don't say."""
    return _moment(labels, EXPIRES_LABEL)


def creation(labels: Mapping[str, str]) -> float | None:
    """When a lease began, in epoch seconds; None where the labels don't say."""
    return _moment(labels, CREATED_LABEL)


def _moment(labels: Mapping[str, str], label: str) -> float | None:
    try:
        return float(labels[label])
    except (KeyError, ValueError):
        return None


def why_expired(info: SandboxInfo, *, now: float | None = None) -> str | None:
    """Why the lease of ``info`` is over, or None while it runs or where there is none."""
    ends = expiry(info.labels)
    late = (time.time() if now is None else now) - ends if ends is not None else 0.0
    return f"its lease ended {late:.0f} s ago" if late > EXPIRY_GRACE else None


def why_reapable(info: SandboxInfo, *, now: float | None = None) -> str | None:
    """Why ``info`` may be reaped by anybody, or None where it must be left alone.

    A lease whose owner is seen to live is for the owner's own reaper to end: only that one knows whether the lease
    is over, or the clock has jumped and its owner is about to renew it.
    """
    owner = Owner.parse(info.labels.get(OWNER_LABEL, ""))
    if owner is not None and _can_be_seen(owner):
        return f"its owner, process {owner.pid}, is dead" if owner_is_dead(owner) else None
    return why_expired(info, now=now)


@dataclass
class Reaped:
    """What a sweep did: sandbox id to the reason it was ended, or to what went wrong."""

    killed: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.killed or self.failed)


async def reap(
    provider: SandboxProvider,
    labels: Mapping[str, str] | None = None,
    *,
    why: Callable[[SandboxInfo], str | None] = why_reapable,
) -> Reaped:
    """Ends the sandboxes that carry ``labels`` and for which ``why`` gives a reason.

    The provider is asked twice, and only what has a reason both times is ended: a lease may have been renewed, or a
    sandbox ended, since the first answer.

    Args:
        provider: Whose sandboxes.
        labels: Which of them; all without it.
        why: Reason to end one, or None.

    Raises:
        SandboxError: The provider can't list. What can't be *ended* is in the result.
    """
    wanted = dict(labels or {})
    done = Reaped()
    if not [info async for info in provider.list(wanted) if why(info)]:
        return done
    doomed = [(info.id, reason) async for info in provider.list(wanted) if (reason := why(info))]

    async def end(sandbox_id: str, reason: str) -> None:
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                if await provider.kill(sandbox_id):
                    done.killed[sandbox_id] = reason
        except Exception as exc:  # one that resists must not save the others
            done.failed[sandbox_id] = describe(exc)

    await asyncio.gather(*(end(sandbox_id, reason) for sandbox_id, reason in doomed))
    return done

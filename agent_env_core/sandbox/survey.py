"""What there is of ours, as the providers list it: for ``agent-env ps`` and ``agent-env gc``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from agent_env_core.errors import NotSetUp, describe
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Prunable, SandboxInfo, SandboxProvider, Unused
from agent_env_core.sandbox.leases import (
    ENV_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    Owner,
    Reaped,
    creation,
    expiry,
    owner_is_dead,
    reap,
    why_reapable,
)
from agent_env_core.sandbox.machine import boot_id, host_id

T = TypeVar("T")

ANSWER_SECONDS = 60.0
"""Seconds in which a provider must answer."""


@dataclass(frozen=True)
class Found:
    """A sandbox that a provider lists.

    Attributes:
        provider: The provider's name.
        id: The provider's name for the sandbox.
        run: The run it belongs to.
        owner: The process that made it.
        state: What is known of that process: ``unknown`` where it's of another machine, or nobody of ours.
        env: The name of the env it runs; empty where it's another kind of sandbox.
        age: Seconds since it was asked for.
        left: Seconds until its lease ends.
        why: Why anybody may end it; empty where nobody but its owner may.
    """

    provider: str
    id: str
    run: str
    owner: Owner | None
    state: Literal["alive", "dead", "unknown"]
    env: str
    age: float | None
    left: float | None
    why: str


@dataclass
class Answers(Generic[T]):
    """What the providers say.

    Attributes:
        given: The answers, by provider.
        silent: Providers that don't answer, and why.
        absent: Providers that nobody has set up here, and what they lack; none where they were asked by name.
    """

    given: dict[str, T] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


@dataclass
class Survey:
    """The sandboxes that there are; the rest as in :class:`Answers`."""

    found: list[Found] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


def look(names: Sequence[str] = ()) -> Survey:
    """Asks providers what sandboxes of ours they have.

    Args:
        names: Which providers; without any, all that are installed and set up.
    """
    answers, now = _ask(names, _list), time.time()
    found = [_found(name, info, now) for name, infos in answers.given.items() for info in infos]
    found.sort(key=lambda one: (one.provider, one.run, -(one.age or 0.0)))
    return Survey(found, answers.silent, answers.absent)


def sweep(names: Sequence[str] = ()) -> Answers[Reaped]:
    """Ends the sandboxes whose owner is dead or whose lease is over."""
    return _ask(names, reap)


def unused(names: Sequence[str] = ()) -> Answers[Sequence[Unused]]:
    """What was prepared for sandboxes and isn't used."""

    async def ask(provider: SandboxProvider) -> Sequence[Unused]:
        return await provider.unused() if isinstance(provider, Prunable) else ()

    return _ask(names, ask)


def prune(name: str, ids: Sequence[str]) -> tuple[set[str], dict[str, str]]:
    """Removes some of :func:`unused`.

    Returns:
        What was removed, and what couldn't be, with the reason; what is in neither is used again, or gone.
    """

    async def work(provider: SandboxProvider) -> tuple[set[str], dict[str, str]]:
        removed, failed = set(), {}
        for id in ids:
            try:
                assert isinstance(provider, Prunable)
                if await provider.prune(id):
                    removed.add(id)
            except Exception as exc:  # the others can go all the same
                failed[id] = describe(exc)
        return removed, failed

    answers = _ask([name], work, seconds=None)
    return answers.given.get(name, (set(), dict.fromkeys(ids, answers.silent.get(name, ""))))


async def _list(provider: SandboxProvider) -> list[SandboxInfo]:
    return [info async for info in provider.list({})]


def _found(provider: str, info: SandboxInfo, now: float) -> Found:
    owner = Owner.parse(info.labels.get(OWNER_LABEL, ""))
    born, ends = creation(info.labels), expiry(info.labels)
    return Found(
        provider=provider,
        id=info.id,
        run=info.labels.get(RUN_LABEL, ""),
        owner=owner,
        state=_state(owner),
        env=info.labels.get(ENV_LABEL, ""),
        age=None if born is None else max(0.0, now - born),
        left=None if ends is None else ends - now,
        why=why_reapable(info, now=now) or "",
    )


def _state(owner: Owner | None) -> Literal["alive", "dead", "unknown"]:
    if owner is None or (owner.host, owner.boot) != (host_id(), boot_id()):
        return "unknown"
    return "dead" if owner_is_dead(owner) else "alive"


def _ask(
    names: Sequence[str], work: Callable[[SandboxProvider], Awaitable[T]], *, seconds: float | None = ANSWER_SECONDS
) -> Answers[T]:
    """Has each provider do something, side by side."""
    answers = Answers[T]()

    async def one(name: str) -> None:
        try:
            provider = plugins().sandbox_provider(name)({})
            try:
                async with asyncio.timeout(seconds) as patience:
                    answers.given[name] = await work(provider)
            except TimeoutError:  # else it's the provider's own, with words of its own
                if not patience.expired():
                    raise
                answers.silent[name] = f"it didn't answer within {seconds:g} s"
            finally:
                await provider.aclose()
        except NotSetUp as exc:
            (answers.silent if names else answers.absent)[name] = describe(exc)
        except Exception as exc:  # whatever it is, the others are asked
            answers.silent[name] = describe(exc)

    async def everybody(asked: Sequence[str]) -> None:
        await asyncio.gather(*(one(name) for name in asked))

    asyncio.run(everybody(list(names) or plugins().known("sandbox provider")))
    return answers

"""Whether a sandbox provider can be used here. It is asked a question that costs nothing, and makes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agent_env_core.errors import Unavailable, describe
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.contract import Capabilities, Explains, SandboxProvider
from agent_env_core.sandbox.leases import RUN_LABEL

LOOK_SECONDS = 5.0
"""Seconds for an answer while somebody watches."""

MORE_SECONDS = 5.0
"""Seconds beyond that in which the provider is made and let go of, before it is left behind."""

_FIX = "see whether it runs, and can be reached from here"


@dataclass(frozen=True)
class Found:
    """What a look at a provider found.

    Attributes:
        capabilities: What it can do; None where it couldn't even be made.
        told: What it says of this machine, in words; empty where it says nothing.
        problem: Why it can't be used, and what to do; empty where it can.
    """

    capabilities: Capabilities | None
    told: str = ""
    problem: str = ""


def look(name: str, config: Mapping[str, Any] | None = None, *, seconds: float = LOOK_SECONDS) -> Found:
    """Makes a provider, asks it, and lets go of it.

    Never raises, and always ends, whatever the provider does: it works in a thread that is left where it hangs.

    Args:
        name: The provider's name, e.g. ``docker``.
        config: Its settings.
        seconds: In which it must answer.
    """
    found = [Found(None, problem=f"no answer within {seconds + MORE_SECONDS:g} s; {_FIX}")]
    thread = threading.Thread(target=_look, args=(name, config or {}, seconds, found.append), daemon=True)
    thread.start()
    thread.join(seconds + MORE_SECONDS)
    return found[-1]


def _look(name: str, config: Mapping[str, Any], seconds: float, tell: Callable[[Found], None]) -> None:
    can: Capabilities | None = None

    def refuse(exc: BaseException) -> None:
        tell(Found(can, problem=describe(exc).removeprefix(f"{name}: ")))

    async def ask(provider: SandboxProvider) -> None:
        try:
            told = await probe(provider, seconds)
            tell(Found(provider.capabilities, told))
        except BaseException as exc:  # a provider may raise anything, CancelledError and SystemExit too
            refuse(exc)
        finally:  # after it was told: it may hang here too
            await provider.aclose()

    try:
        provider = plugins().sandbox_provider(name)(config)
        can = provider.capabilities
        asyncio.run(ask(provider))
    except BaseException as exc:
        refuse(exc)


async def probe(provider: SandboxProvider, seconds: float) -> str:
    """Asks a provider for sandboxes that nobody made; raises whatever keeps it from answering.

    Returns:
        What it says of this machine, in words; empty where it says nothing.

    Raises:
        Unavailable: It didn't answer within ``seconds``.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            async for _ in provider.list({RUN_LABEL: "none"}):
                break
    except TimeoutError:
        if not limit.expired():
            raise
        whose = f" ({told})" if (told := _told(provider)) else ""
        raise Unavailable(f"{provider.name}: no answer within {seconds:g} s{whose}; {_FIX}") from None
    return _told(provider)


def _told(provider: SandboxProvider) -> str:
    return provider.explain() if isinstance(provider, Explains) else ""

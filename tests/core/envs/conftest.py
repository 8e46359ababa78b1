"""What the tests of deployments made ahead share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from stock import Open, Quay, Stock

from agent_env_core.envs import warm
from agent_env_core.sandbox.machine import Memory


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with memory for all, and no pauses."""
    monkeypatch.setattr(warm, "memory", lambda: Memory(64 << 30, 64 << 30))
    monkeypatch.setattr(warm, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(warm, "CALM_SECONDS", 0.0)


@pytest.fixture
async def stock(plenty: None) -> AsyncIterator[Open]:
    """Opens deployers: ``await stock(2)`` makes two ahead."""
    async with AsyncExitStack() as stack:

        async def make(warm: int = 2, fake: Quay | None = None, **limits: Any) -> Stock:
            made = Stock(warm, fake or Quay(), **limits)
            stack.push_async_callback(made.aclose)
            return made

        yield make

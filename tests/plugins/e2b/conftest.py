"""The double of E2B, one for all tests, and a provider that talks to it through the real SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env_e2b.provider import E2BProvider
from agent_env_e2b.settings import Settings
from box import require
from e2b_double import E2BDouble

NOT_OURS = ("E2B_API_KEY", "E2B_ACCESS_TOKEN", "E2B_DOMAIN", "E2B_DEBUG", "E2B_API_URL", "E2B_SANDBOX_URL")

FAST = Settings(plan="pro", retry_after=0.2, creates_per_second=1000)


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test uses an account of whoever runs it, and locks are its own."""
    for name in NOT_OURS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def e2b_account() -> Iterator[E2BDouble]:
    """The double."""
    require()
    with E2BDouble() as double:
        yield double


@pytest.fixture
def double(e2b_account: E2BDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[E2BDouble]:
    """The double, as if new; a test that met what it doesn't know has failed, and none leaves a sandbox behind."""
    world = e2b_account.world
    for name, value in e2b_account.env.items():
        monkeypatch.setenv(name, value)
    yield e2b_account
    unknown, world.unknown, world.faults = world.unknown, [], []
    left = list(world.sandboxes.values())
    for sandbox in left:
        e2b_account.do(world.end(sandbox))
    world.concurrent, world.peak, world.held_up, world.longest = 1 << 30, 0, None, 86400.0
    assert unknown == []
    assert not left, "sandboxes are left"


@pytest.fixture
async def provider(double: E2BDouble) -> AsyncIterator[E2BProvider]:
    """A provider on the double."""
    made = E2BProvider(FAST)
    yield made
    await made.aclose()


@pytest.fixture(scope="session")
def fast() -> Settings:
    """Settings that wait for nothing."""
    return FAST


@pytest.fixture
def bodies(double: E2BDouble) -> Callable[[], list[dict[str, Any]]]:
    """The bodies of the creates from here on."""
    begin = len(double.world.bodies)
    return lambda: double.world.bodies[begin:]

"""A double of E2B for each test, and the provider that is led to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from agent_env_e2b.provider import E2BProvider
from agent_env_e2b.settings import Settings
from box import why_not
from e2b_double import serve, settings

if TYPE_CHECKING:
    from e2b_world import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The double's machines are not to be had everywhere."""
    for item in items:
        if "world" in getattr(item, "fixturenames", ()) and why_not():
            item.add_marker(pytest.mark.skip(reason=why_not()))


@pytest.fixture(autouse=True)
def _own_account(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test uses an account of whoever runs it, and locks are its own."""
    for name in ("E2B_API_KEY", "E2B_ACCESS_TOKEN", "E2B_DOMAIN", "E2B_DEBUG", "E2B_API_URL", "E2B_SANDBOX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """An empty account; a call that the double doesn't know fails the test."""
    async with serve() as (made, url):
        for name, value in settings(url).items():
            monkeypatch.setenv(name, value)
        yield made
        assert made.unknown == []
        assert made.sandboxes == {}, "sandboxes are left"


@pytest.fixture
async def provider(world: World) -> AsyncIterator[E2BProvider]:
    """The provider, on the plan that counts the fewest things."""
    made = E2BProvider(Settings(plan="pro"))
    yield made
    await made.aclose()

"""The conformance kit: the provider, the real SDK, and the double of E2B behind it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import pytest
from agent_env_e2b.provider import E2BProvider
from agent_env_e2b.settings import Settings
from e2b_world import Fault

from agent_env_core.testing.sandbox import SandboxConformance

if TYPE_CHECKING:
    from e2b_world import World


class TestE2B(SandboxConformance):
    @pytest.fixture
    async def provider(self, world: World) -> AsyncIterator[E2BProvider]:
        made = E2BProvider(Settings(plan="pro"))
        yield made
        await made.aclose()

    @pytest.fixture
    async def image(self, provider, tmp_path_factory):  # each double is an account of its own
        from agent_env_core.testing.running import prepare_base

        return await prepare_base(provider, self.base_image, tmp_path_factory.mktemp("context"))

    @pytest.fixture
    def outside(self, world: World):
        async def count(labels: Mapping[str, str]) -> list[str]:
            return [each.id for each in world.sandboxes.values() if labels.items() <= each.metadata.items()]

        return count

    @pytest.fixture
    def faults(self, world: World, provider: E2BProvider, monkeypatch: pytest.MonkeyPatch):
        def scripted(*faults: Fault):
            @contextlib.asynccontextmanager
            async def bring_about() -> AsyncIterator[E2BProvider]:
                world.faults = list(faults)
                try:
                    yield provider
                finally:
                    world.faults = []

            return bring_about

        @contextlib.asynccontextmanager
        async def refused() -> AsyncIterator[E2BProvider]:
            key = os.environ["E2B_API_KEY"]
            monkeypatch.setenv("E2B_API_KEY", "e2b_wrong")
            other = E2BProvider(Settings(plan="pro"))
            try:
                yield other
            finally:
                await other.aclose()
                monkeypatch.setenv("E2B_API_KEY", key)

        @contextlib.asynccontextmanager
        async def evicted() -> AsyncIterator[E2BProvider]:
            for sandbox in list(world.sandboxes.values()):
                await world.end(sandbox)
            yield provider

        everything = [Fault(call) for call in ("POST /", "GET /", "DELETE /")]
        full = "you have reached the maximum number of concurrent E2B sandboxes (20)"
        return {
            "config": refused,
            "busy": scripted(Fault("POST /v2/sandboxes", 429, full)),
            "unavailable": scripted(*everything),
            "lost": scripted(
                Fault("POST /v2/sandboxes", 504, after=True), Fault("POST /process.Process/Start", events=2, times=1)
            ),
            "evicted": evicted,
        }

"""The conformance kit: the provider, the real SDK, and the double of E2B behind it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from agent_env_e2b.provider import E2BProvider
from agent_env_e2b.settings import Settings
from e2b_double import E2BDouble
from e2b_world import Fault

from agent_env_core.testing.sandbox import SandboxConformance

FAST = Settings(plan="pro", retry_after=0.2, creates_per_second=1000)


class TestE2B(SandboxConformance):
    @pytest.fixture
    async def provider(self, double: E2BDouble) -> AsyncIterator[E2BProvider]:
        made = E2BProvider(FAST)
        yield made
        await made.aclose()

    @pytest.fixture
    def outside(self, double: E2BDouble):
        async def count(labels: Mapping[str, str]) -> list[str]:
            return double.do(double.world.labelled(labels))

        return count

    @pytest.fixture
    def faults(self, double: E2BDouble, provider: E2BProvider, monkeypatch: pytest.MonkeyPatch):
        def scripted(*faults: Fault):
            @contextlib.asynccontextmanager
            async def bring_about() -> AsyncIterator[E2BProvider]:
                double.world.faults = [replace(fault) for fault in faults]
                try:
                    yield provider
                finally:
                    double.world.faults = []

            return bring_about

        @contextlib.asynccontextmanager
        async def refused() -> AsyncIterator[E2BProvider]:
            monkeypatch.setenv("E2B_API_KEY", "e2b_wrong")
            try:
                yield provider
            finally:
                monkeypatch.setenv("E2B_API_KEY", double.env["E2B_API_KEY"])

        @contextlib.asynccontextmanager
        async def evicted() -> AsyncIterator[E2BProvider]:
            for sandbox in list(double.world.sandboxes.values()):
                double.do(double.world.end(sandbox))
            yield provider

        full = "you have reached the maximum number of concurrent E2B sandboxes (20)"
        return {
            "config": refused,
            "busy": scripted(Fault("POST /v2/sandboxes", 429, full)),
            "unavailable": scripted(*(Fault(call) for call in ("POST /", "GET /", "DELETE /"))),
            "lost": scripted(
                Fault("POST /v2/sandboxes", 504, after=True), Fault("POST /process.Process/Start", events=2, times=1)
            ),
            "evicted": evicted,
        }

"""The conformance kit, through the real SDK, against the double."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import pytest
from agent_env_modal.provider import ModalProvider
from agent_env_modal.settings import Settings
from grpclib import Status
from modal_double import ModalDouble
from modal_wire import EVERY, Fault
from modal_world import Ended

from agent_env_core.testing.checks.base import Fault as KitFault
from agent_env_core.testing.checks.base import Outside
from agent_env_core.testing.sandbox import SandboxConformance


class TestModal(SandboxConformance):
    @pytest.fixture
    async def provider(self, double: ModalDouble) -> AsyncIterator[ModalProvider]:
        provider = ModalProvider(Settings())
        yield provider
        await provider.aclose()

    @pytest.fixture
    def outside(self, double: ModalDouble) -> Outside:
        async def look(labels: Mapping[str, str]) -> Collection[str]:
            return [box.id for box in double.world.running(labels)]

        return look

    @pytest.fixture
    def faults(self, double: ModalDouble, provider: ModalProvider) -> Mapping[str, KitFault]:
        world = double.world
        # The SDK repeats what may pass; what it hands on at once keeps a check short.
        control, router = Fault(Status.UNAVAILABLE), Fault(Status.DATA_LOSS)

        @asynccontextmanager
        async def failing(**always: Fault) -> AsyncIterator[ModalProvider]:
            world.control.always.update({EVERY: always["control"]} if "control" in always else {})
            world.control.always.update({"SandboxCreateV2": always["create"]} if "create" in always else {})
            world.router.always.update({EVERY: always["router"]} if "router" in always else {})
            try:
                yield provider
            finally:
                world.control.always.clear()
                world.router.always.clear()

        @asynccontextmanager
        async def evicted() -> AsyncIterator[ModalProvider]:
            for box in world.running():
                double.do(box.finish(Ended.GENERIC_STATUS_MEMORY_MANAGER_EVICTION, 137))
            yield provider

        lost = {"control": Fault(control.status, after=True), "router": Fault(router.status, after=True)}
        return {
            "config": lambda: failing(control=Fault(Status.UNAUTHENTICATED, "Token ID is malformed or unknown")),
            "busy": lambda: failing(create=Fault(Status.RESOURCE_EXHAUSTED, "no room", retry_after=0.01)),
            "unavailable": lambda: failing(control=control, router=router),
            "lost": lambda: failing(**lost),
            "evicted": evicted,
        }

"""The conformance kit, in each isolation that this machine allows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from agent_env_process.provider import ProcessProvider

from agent_env_core.testing.sandbox import SandboxConformance


@pytest.mark.usefixtures("no_processes_left")
class Kit(SandboxConformance):
    isolation = "none"

    @pytest.fixture
    async def provider(self, config, allowed):
        allowed(self.isolation)
        provider = ProcessProvider({**config, "isolation": self.isolation})
        yield provider
        await provider.aclose()

    @pytest.fixture
    def outside(self, config):
        """Looks into the state folder; ``no_processes_left`` looks at the processes."""
        return partial(_recorded, Path(config["state_dir"]))

    @pytest.fixture
    def faults(self, config, provider):
        """What can go wrong with a machine. There is no service between, whose answer could be lost."""

        def meanwhile(broken):
            @contextlib.asynccontextmanager
            async def fault():
                with broken(Path(config["state_dir"])):
                    yield provider

            return fault

        faults = {"config": meanwhile(_unusable)}
        # without namespaces, no process holds a sandbox that could be killed
        return faults if self.isolation == "none" else {**faults, "evicted": meanwhile(_holders_killed)}


@contextlib.contextmanager
def _unusable(state):
    """A file in the folder's place."""
    aside = state.with_name("aside")
    state.rename(aside)
    state.touch()
    try:
        yield
    finally:
        state.unlink()
        aside.rename(state)


@contextlib.contextmanager
def _holders_killed(state):
    for lease in state.glob("*/leases/*.json"):
        os.kill(json.loads(lease.read_text())["holder"]["pid"], signal.SIGKILL)
    yield


async def _recorded(state, labels):
    found = set()
    for lease in await asyncio.to_thread(lambda: list(state.glob("*/leases/*.json"))):
        with contextlib.suppress(FileNotFoundError):
            if labels.items() <= json.loads(await asyncio.to_thread(lease.read_text))["labels"].items():
                found.add(lease.stem)
    return found


class TestProcessGroup(Kit):
    isolation = "none"


class TestNamespaces(Kit):
    isolation = "namespace"


class TestBubblewrap(Kit):
    isolation = "bubblewrap"

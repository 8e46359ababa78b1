"""The conformance kit, in each isolation that this machine allows."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

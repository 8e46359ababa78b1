from __future__ import annotations

import pytest
from agent_env_process.provider import ProcessProvider

from agent_env_core.testing.sandbox import SandboxConformance


@pytest.mark.usefixtures("no_processes_left")
class TestProcess(SandboxConformance):
    @pytest.fixture
    async def provider(self, config):
        provider = ProcessProvider(config)
        yield provider
        await provider.aclose()

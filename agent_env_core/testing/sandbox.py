"""The conformance kit for sandbox providers.

Subclass :class:`SandboxConformance` in a test module of the provider and override one fixture::

    class TestMine(SandboxConformance):
        @pytest.fixture
        async def provider(self):
            provider = MyProvider({})
            yield provider
            await provider.aclose()

Every promise of :mod:`agent_env_core.sandbox.contract` is checked; what the provider's capabilities don't claim must be
refused. The checks need ``pytest-asyncio`` with ``asyncio_mode = "auto"``, and an image with ``sh``, the usual tools
and ``python3`` (override ``base_image`` or the fixture ``image`` where the default doesn't fit). A provider that runs
no real commands can take the parts it claims, such as :class:`LifeChecks`, by themselves.
"""

from __future__ import annotations

from agent_env_core.testing.checks.base import Boxes, Kit, context, eventually
from agent_env_core.testing.checks.commands import CommandChecks
from agent_env_core.testing.checks.files import FileChecks, FileCommandChecks
from agent_env_core.testing.checks.images import ImageChecks
from agent_env_core.testing.checks.life import LifeChecks, RefusalChecks
from agent_env_core.testing.checks.network import NetworkChecks

__all__ = [
    "Boxes",
    "CommandChecks",
    "FileChecks",
    "FileCommandChecks",
    "ImageChecks",
    "Kit",
    "LifeChecks",
    "NetworkChecks",
    "RefusalChecks",
    "SandboxConformance",
    "context",
    "eventually",
]


class SandboxConformance(
    CommandChecks, FileChecks, FileCommandChecks, NetworkChecks, LifeChecks, RefusalChecks, ImageChecks
):
    """All checks. Override the fixture ``provider``."""

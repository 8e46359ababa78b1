"""The conformance kit for sandbox providers, as a class for pytest.

Subclass :class:`SandboxConformance` in a test module of the provider and override one fixture::

    class TestMine(SandboxConformance):
        @pytest.fixture
        async def provider(self):
            provider = MyProvider({})
            yield provider
            await provider.aclose()

Every promise of :mod:`agent_env_core.sandbox.contract` is checked; what the provider's capabilities don't claim must be
refused. It needs ``pytest-asyncio`` with ``asyncio_mode = "auto"``, and an image with ``sh``, the usual tools and
``python3``: set ``base_image``, or override the fixture ``image``, where the default doesn't fit. The fixtures
``outside`` and ``faults`` are optional, and make the kit see more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from agent_env_core.sandbox.contract import SandboxProvider
from agent_env_core.testing.checks import CHECKS, SUBJECTS
from agent_env_core.testing.checks.base import Check, Fault, Outside, Skipped, Target, Trial, perform
from agent_env_core.testing.running import prepare_base

__all__ = ["SandboxConformance"]


class SandboxConformance:
    """All checks. Override the fixture :meth:`provider`; everything else is optional.

    Attributes:
        base_image: What the kit's own Dockerfiles start from: any image with ``sh``, the usual tools, and ``python3``.
        subjects: What is checked. A provider that runs no real commands leaves out what it can't have.
        gpu: A GPU type to ask for, where the provider claims GPUs.
    """

    base_image: ClassVar[str] = "python:3.11-slim"
    subjects: ClassVar[tuple[str, ...]] = SUBJECTS
    gpu: ClassVar[str | None] = None

    _prepared: ClassVar[dict[type, str]] = {}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Makes a test of each check."""
        if "check" in metafunc.fixturenames:
            checks = [check for check in CHECKS if check.subject in self.subjects]
            metafunc.parametrize("check", checks, ids=[check.name for check in checks])

    @pytest.fixture
    async def provider(self) -> AsyncIterator[SandboxProvider]:
        """The provider under test, new for every check; close it after the ``yield``."""
        raise NotImplementedError("override the fixture `provider`: yield your provider, then close it")
        yield  # noqa: PT022 - what overrides it has something to close

    @pytest.fixture
    async def image(self, provider: SandboxProvider, tmp_path_factory: pytest.TempPathFactory) -> str:
        """A prepared image; by default :attr:`base_image`, built or pulled, whichever the provider can do."""
        if type(self) not in self._prepared:
            folder = tmp_path_factory.mktemp("context")
            self._prepared[type(self)] = await prepare_base(provider, self.base_image, folder)
        return self._prepared[type(self)]

    @pytest.fixture
    def outside(self) -> Outside | None:
        """Names what exists of the sandboxes with certain labels, without asking the provider; None counts nothing."""
        return None

    @pytest.fixture
    def faults(self) -> Mapping[str, Fault]:
        """Ways to make the service go wrong, by the names of :data:`agent_env_core.testing.checks.errors.FAULTS`."""
        return {}

    async def test_the_contract(
        self,
        check: Check,
        provider: SandboxProvider,
        image: str,
        outside: Outside | None,
        faults: Mapping[str, Fault],
        tmp_path: Path,
    ) -> None:
        """One check; its name says what the contract promises."""
        tested = Target(provider, image, self.base_image, outside, faults, self.gpu)
        folder = tmp_path / "kit"
        folder.mkdir()
        try:
            await perform(check, Trial(tested, folder, check.boxes))
        except Skipped as skipped:
            pytest.skip(str(skipped))

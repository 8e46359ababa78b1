"""What the tests of the conformance kit share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agent_env_core.errors import SandboxError
from agent_env_core.testing.checks import CHECKS, base, commands, leases, life
from agent_env_core.testing.checks.base import Failed, Target, Trial, perform

BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture
def noticed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Target, str, Path], Awaitable[str]]:
    """Gives what a check says of a provider, empty where it is content. What never comes true is given up soon."""
    patient = base.eventually
    for module in (commands, leases, life):
        monkeypatch.setattr(module, "eventually", lambda look, seconds, what: patient(look, min(seconds, 4), what))
    monkeypatch.setattr(base, "AFTER", 0.5)

    async def perform_one(tested: Target, check: str, folder: Path) -> str:
        try:
            await perform(BY_NAME[check], Trial(tested, folder, BY_NAME[check].boxes))
        except (Failed, SandboxError, RuntimeError, TypeError, AttributeError) as exc:
            return f"{type(exc).__name__}: {exc}"
        return ""

    return perform_one

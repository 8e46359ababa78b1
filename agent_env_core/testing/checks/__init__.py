"""The checks of the conformance kit, by subject."""

from __future__ import annotations

from agent_env_core.testing.checks import (
    commands,
    errors,
    files,
    images,
    leases,
    life,
    limits,
    mixed,
    network,
    refusals,
)
from agent_env_core.testing.checks.base import Check

_ORDER = (life, commands, files, mixed, network, images, leases, limits, refusals, errors)

CHECKS: tuple[Check, ...] = tuple(check for module in _ORDER for check in module.SUBJECT.checks)
"""All checks, in the order they are run: what everything else rests on first."""

SUBJECTS: tuple[str, ...] = tuple(module.SUBJECT.name for module in _ORDER)
"""What there are checks of."""

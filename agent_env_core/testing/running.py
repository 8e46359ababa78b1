"""Runs the conformance kit without a test framework, for a user with an account."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_env_core.errors import AgentEnvError, describe
from agent_env_core.sandbox.contract import Image, SandboxProvider
from agent_env_core.testing.checks import CHECKS
from agent_env_core.testing.checks.base import Check, Failed, Skipped, Target, Trial, perform

Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Result:
    """How one check went.

    Attributes:
        check: The check.
        outcome: How it went.
        reason: Why it failed or was skipped; empty where it passed.
        seconds: How long it took, clearing away included.
    """

    check: Check
    outcome: Outcome
    reason: str
    seconds: float


def choose(patterns: Iterable[str]) -> tuple[Check, ...]:
    """The checks of the subjects that ``patterns`` name, and those whose name contains one; all where there is none.

    Raises:
        ValueError: A pattern fits no check.
    """
    wanted = [pattern.lower().replace(" ", "_") for pattern in patterns]
    found: set[Check] = set()
    for pattern in wanted:
        fits = {check for check in CHECKS if pattern == check.subject.replace(" ", "_")}
        fits = fits or {check for check in CHECKS if pattern in check.name}
        if not fits:
            raise ValueError(f"no check has {pattern!r} in its name or for its subject")
        found |= fits
    return tuple(check for check in CHECKS if check in found or not wanted)


async def prepare_base(provider: SandboxProvider, base_image: str, folder: Path) -> str:
    """Prepares ``base_image``, with a Dockerfile in ``folder`` where the provider builds, else as a reference."""
    image = Image(ref=base_image)
    if provider.capabilities.build:
        (folder / "Dockerfile").write_text(f"FROM {base_image}\n", encoding="utf-8")
        image = Image(context=folder)
    return await provider.prepare(image)


async def run_checks(
    provider: SandboxProvider,
    checks: Sequence[Check],
    *,
    base_image: str,
    gpu: str | None = None,
    before: Callable[[Check], None] = lambda check: None,
    after: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Runs ``checks`` one after another; what each makes is ended before the next begins, and when this is cancelled.

    Args:
        provider: The provider; it is left open.
        checks: Which checks.
        base_image: See :class:`~agent_env_core.testing.checks.base.Target`.
        gpu: See there.
        before: Told of each check that begins.
        after: Told how it went.

    Raises:
        SandboxError: ``base_image`` can't be prepared, so nothing can be checked.
    """
    results = []
    with tempfile.TemporaryDirectory(prefix="agent-env-kit-") as root:
        (base := Path(root) / "base").mkdir()
        tested = Target(provider, await prepare_base(provider, base_image, base), base_image, gpu=gpu)
        for number, check in enumerate(checks):
            before(check)
            (folder := Path(root) / str(number)).mkdir()
            result = await _run(check, Trial(tested, folder, check.boxes))
            results.append(result)
            after(result)
    return results


async def _run(check: Check, trial: Trial) -> Result:
    began = time.monotonic()
    outcome: Outcome = "passed"
    reason = ""
    try:
        await perform(check, trial)
    except Skipped as exc:
        outcome, reason = "skipped", str(exc)
    except Failed as exc:
        outcome, reason = "failed", str(exc)
    except AgentEnvError as exc:  # the contract doesn't allow it here
        outcome, reason = "failed", f"{type(exc).__name__}: {describe(exc)}"
    except Exception as exc:
        outcome, reason = "failed", f"{describe(exc)}, which is none of the contract's errors"
    return Result(check, outcome, reason, time.monotonic() - began)

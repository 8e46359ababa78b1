"""Asking a provider for a sandbox until there is one, nothing can help, or the time for it is used up."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace

from agent_env_core.errors import Busy, ImageError, SandboxError, Unavailable, describe
from agent_env_core.sandbox.builds import Builds
from agent_env_core.sandbox.contract import Sandbox, SandboxProvider, SandboxSpec
from agent_env_core.sandbox.leases import Owner, lease_labels, reap
from agent_env_core.sandbox.limits import Limits, Place

log = logging.getLogger(__name__)

CREATE_LABEL = "agent-env.create"
"""Stamped with a value of its own on every create, so that one whose outcome is unknown can be found and undone."""

BUDGET = 120.0
"""Seconds after which a create that failed isn't tried again, for whatever reason it failed."""

LOST_TRIES = 2
"""Tries of a create whose outcome gets lost. A provider at its limit is asked for as long as the budget lasts."""

SWEEP_TIMEOUT = 30.0
"""Seconds one look for what a lost create left may take."""


class Creates:
    """Creates sandboxes with leases.

    Args:
        provider: Makes them.
        limits: What a host keeps to.
        owner: Whom the leases name.
        run_id: The run they name.
        builds: Prepares an image again that was removed since.
        refuse: Raises once nothing more may be created.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        limits: Limits,
        owner: Owner,
        run_id: str,
        builds: Builds,
        refuse: Callable[[], None],
    ) -> None:
        self._provider, self._limits, self._builds = provider, limits, builds
        self._owner, self._run_id = owner, run_id
        self._refuse = refuse
        self._refused = 0

    @property
    def refused(self) -> bool:
        """Whether a create waits for a provider that is at its own limit."""
        return self._refused > 0

    async def create(self, spec: SandboxSpec, place: Place, mark: str) -> Sandbox:
        """Creates one sandbox.

        While it waits to ask again it doesn't count as starting. What was lost is looked for, and ended, before another
        try. An image that can't be used is prepared again, once: a server lives for weeks, and images are tidied away
        where none of its sandboxes uses them at that moment.

        Args:
            spec: What to create.
            place: Room for it.
            mark: The value of :data:`CREATE_LABEL` on every try.

        Raises:
            SandboxError: As the provider raised it at the last try.
        """
        ends, lost, pause, anew = time.monotonic() + BUDGET, 0, 0.2, False
        failure: SandboxError
        while True:
            await place.start()
            try:
                await self._limits.pace()
                self._refuse()
                labels = {**lease_labels(self._owner, self._run_id, spec.ttl), CREATE_LABEL: mark}
                return await self._provider.create(replace(spec, labels={**spec.labels, **labels}))
            except ImageError:
                if anew or not await self._builds.again(spec.image):
                    raise
                anew = True
                continue
            except Busy as exc:
                failure, pause = exc, max(0.05, exc.retry_after)
            except Unavailable as exc:
                failure, lost = exc, lost + 1
                if not await self.sweep(mark) or lost >= LOST_TRIES:
                    raise
            pause *= random.uniform(0.75, 1.25)  # noqa: S311 - spreads the callers
            self._refuse()
            if time.monotonic() + pause > ends or not place.patient:
                raise failure
            log.debug("%s: asking again in %.1f s: %s", self._provider.name, pause, failure)
            place.started()
            self._refused += 1
            try:
                await asyncio.sleep(pause)
            finally:
                self._refused -= 1

    async def sweep(self, mark: str) -> bool:
        """Ends what a create of this mark made; says whether it's sure that nothing is left."""
        try:
            async with asyncio.timeout(SWEEP_TIMEOUT):
                found = await reap(self._provider, {CREATE_LABEL: mark}, why=lambda _: "its create failed half-way")
        except Exception as exc:  # what is left carries a lease, and goes with the host
            log.debug("%s: can't look for what a failed create left: %s", self._provider.name, describe(exc))
            return False
        if found.failed:
            log.warning("%s: a failed create left %s", self._provider.name, ", ".join(found.failed))
        return not found.failed

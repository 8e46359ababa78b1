"""Checks of leases: owners, expiry, extending, the TTL. They need ``true`` and ``sleep``."""

from __future__ import annotations

import asyncio
import sys
import time

from agent_env_core.errors import Unsupported
from agent_env_core.sandbox.leases import OWNER_LABEL, Owner, expiry, lease_labels, reap, why_expired
from agent_env_core.sandbox.machine import boot_id, host_id
from agent_env_core.testing.checks.base import (
    ENOUGH,
    LONGEST_TTL,
    Skipped,
    Subject,
    Trial,
    eventually,
    raises,
    same,
    true,
)
from agent_env_core.testing.checks.life import is_gone

SUBJECT = Subject("leases")


@SUBJECT.check()
async def a_living_owners_lease_is_respected(trial: Trial) -> None:
    box = await trial.make()
    same(bool(await reap(trial.provider, trial.mine)), False, "whether anything was reaped")
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0)


@SUBJECT.check(boxes=2)
async def what_a_dead_owner_left_is_reaped(trial: Trial) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    dead = Owner(host_id(), boot_id(), ended.pid, "1")
    box, other = await trial.make(labels={OWNER_LABEL: str(dead)}), await trial.make()
    reaped = await reap(trial.provider, trial.mine)
    same((set(reaped.killed), reaped.failed), ({box.id}, {}))
    true(await is_gone(box), "what was reaped must be gone")
    same(set(await trial.listed()), {other.id})


@SUBJECT.check()
async def an_ended_lease_is_reaped(trial: Trial) -> None:
    box = await trial.make(labels=lease_labels(Owner.current(), trial.run_id, 60))
    soon, later = time.time(), time.time() + 600
    early = await reap(trial.provider, trial.mine, why=lambda info: why_expired(info, now=soon))
    same(bool(early), False, "whether a lease that runs was reaped")
    reaped = await reap(trial.provider, trial.mine, why=lambda info: why_expired(info, now=later))
    same(set(reaped.killed), {box.id})
    true(await is_gone(box), "what was reaped must be gone")


@SUBJECT.check()
async def the_expiry_is_stamped_by_the_provider_where_the_spec_has_none(trial: Trial) -> None:
    labels = {key: value for key, value in trial.labels.items() if key in trial.mine}
    trial.labels = labels
    box = await trial.make(ttl=500)
    ends = expiry((await trial.listed())[box.id].labels)
    true(ends is not None and abs(ends - time.time() - 500) < 60, f"the label of the lease's end is wrong: {ends}")


@SUBJECT.check()
async def extend_moves_the_lease_where_that_is_claimed(trial: Trial) -> None:
    box = await trial.make()
    if not trial.can.extend:
        with raises(Unsupported):
            await box.extend(LONGEST_TTL)
        return
    await box.extend(LONGEST_TTL)
    ends = expiry((await trial.listed())[box.id].labels) or 0.0
    true(
        abs(ends - time.time() - LONGEST_TTL) < 60,
        f"the lease ends in {ends - time.time():.0f} s, and not in {LONGEST_TTL:.0f}",
    )
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0)


@SUBJECT.check()
async def a_kept_ttl_ends_the_sandbox_where_that_is_claimed(trial: Trial) -> None:
    if not trial.can.ttl_enforced:
        raise Skipped("the provider leaves the TTL to the reaper")
    box = await trial.make(ttl=3)
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0, "before the TTL has passed")
    await eventually(lambda: is_gone(box), 60, "a sandbox with a TTL of 3 s must end")


@SUBJECT.check()
async def an_extended_sandbox_outlives_its_first_ttl(trial: Trial) -> None:
    if not (trial.can.ttl_enforced and trial.can.extend):
        raise Skipped("the provider doesn't claim both to keep a TTL and to extend it")
    box = await trial.make(ttl=3)
    await box.extend(300)
    await asyncio.sleep(4)
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0, "after the first TTL has passed")

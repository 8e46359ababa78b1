"""Checks of what the six errors mean, where a provider's tests can bring their causes about.

``ImageError`` and ``Unsupported`` need no fault and are checked with images and refusals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from agent_env_core.errors import Busy, ConfigError, Unavailable
from agent_env_core.sandbox.contract import Image
from agent_env_core.sandbox.leases import reap
from agent_env_core.testing.checks.base import ENOUGH, Subject, Trial, eventually, raises, same, true
from agent_env_core.testing.checks.life import is_gone

SUBJECT = Subject("errors")

FAULTS: Mapping[str, str] = {
    "config": "the credentials, or the engine, are refused",
    "busy": "there is no room, or a rate limit was reached: nothing more can be created",
    "unavailable": "the service fails before it has done anything",
    "lost": "the service does its work, and its answer is lost",
    "evicted": "every sandbox that exists ends, by no call of ours",
}
"""What the checks ask for by name."""


@SUBJECT.check()
async def refused_credentials_are_a_config_error_of_every_call(trial: Trial) -> None:
    box = await trial.make()
    async with trial.fault("config") as provider:
        image = trial.built() if trial.can.build else Image(ref=trial.tested.base_image)
        with raises(ConfigError):
            await provider.prepare(image)
        with raises(ConfigError):
            await provider.create(trial.spec())
        with raises(ConfigError):
            await provider.attach(box.id)
        with raises(ConfigError):
            await provider.kill(box.id)
        with raises(ConfigError):
            _ = [info async for info in provider.list(trial.mine)]
    same(set(await trial.listed()), {box.id}, "nothing may be created or ended by a call that was refused")


@SUBJECT.check(boxes=2)
async def busy_means_that_nothing_was_created(trial: Trial) -> None:
    async with trial.fault("busy") as provider:
        trial.spend()
        with raises(Busy) as caught:
            await provider.create(trial.spec())
    assert isinstance(caught.error, Busy)
    wait = caught.error.retry_after
    true(math.isfinite(wait) and wait >= 0, f"retry_after={wait!r} must be a number of seconds")
    same(set(await trial.listed()), set(), "Busy promises that nothing was created")
    same(list(await trial.outside()), [], "Busy promises that nothing was created, seen from outside")
    same((await (await trial.make()).exec(["true"], timeout=ENOUGH)).exit_code, 0, "the same call, made again")


@SUBJECT.check(boxes=2)
async def a_failing_service_is_unavailable_and_not_empty(trial: Trial) -> None:
    box = await trial.make()
    async with trial.fault("unavailable") as provider:
        trial.spend()
        with raises(Unavailable):
            await provider.create(trial.spec())
        with raises(Unavailable):  # an answer of False would pass for "there is none", and leak it
            await provider.kill(box.id)
        with raises(Unavailable):  # an empty list would pass for "nothing is left"
            _ = [info async for info in provider.list(trial.mine)]
        with raises(Unavailable):  # Gone would end an episode whose sandbox lives
            await box.read("/kit/x")
    same(set(await trial.listed()), {box.id}, "after the service came back")
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0)


@SUBJECT.check()
async def a_create_whose_answer_is_lost_is_found_by_its_labels(trial: Trial) -> None:
    trial.spend()
    async with trial.fault("lost") as provider:
        with raises(Unavailable):
            await provider.create(trial.spec())
    await reap(trial.provider, trial.mine, why=lambda _: "its create failed half-way")

    async def nothing() -> bool:
        return not await trial.outside() and not await trial.listed()

    await eventually(nothing, 20, "what a lost create made must be listed by the labels it was asked for with")


@SUBJECT.check()
async def an_evicted_sandbox_is_gone_and_can_be_cleared_away(trial: Trial) -> None:
    box = await trial.make()
    async with trial.fault("evicted"):
        await eventually(lambda: is_gone(box), 60, "every method of an evicted sandbox must raise Gone")
    await trial.provider.kill(box.id)
    same(set(await trial.listed()), set())

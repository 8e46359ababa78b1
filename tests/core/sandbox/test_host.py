"""Sandboxes that a host makes and ends, and the images that it prepares: nothing is left in whatever way it goes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from waiting import eventually

from agent_env_core.errors import Busy, Gone, ImageError, Unavailable, Unsupported
from agent_env_core.sandbox import creates as creates_module
from agent_env_core.sandbox import host as host_module
from agent_env_core.sandbox.contract import Image, SandboxSpec
from agent_env_core.sandbox.creates import CREATE_LABEL
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.sandbox.leases import OWNER_LABEL, RUN_LABEL, Owner, expiry
from agent_env_core.testing.fake import FakeProvider

IMAGE = Image(ref="registry.example/x:1")


class TestCreate:
    async def test_every_sandbox_carries_a_lease(self, host, fake, spec):
        box = await host.create(replace(spec, labels={"mine": "1"}))
        labels = fake.sandboxes[box.id].labels
        assert (labels[RUN_LABEL], labels[OWNER_LABEL], labels["mine"]) == ("run", str(Owner.current()), "1")
        assert expiry(labels) is not None
        assert labels[CREATE_LABEL]
        assert host.labels.items() <= labels.items()

    async def test_a_spec_past_the_capabilities_is_refused_before_anything(self, host, fake, spec):
        with pytest.raises(Unsupported, match="T4"):
            await host.create(replace(spec, gpu="T4"))
        assert fake.calls["create"] == 0

    async def test_a_cancelled_create_is_finished_and_undone(self, host, fake, spec):
        fake.fault("create", until=(goes_on := asyncio.Event()))
        create = asyncio.create_task(host.create(spec))
        await eventually(lambda: fake.calls["create"])
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        assert host.live == 1, "what is under way counts"
        goes_on.set()
        await eventually(lambda: host.live == 0)
        assert (fake.created, fake.killed, fake.sandboxes) == (1, 1, {})

    @pytest.mark.parametrize("given_up", [False, True])
    async def test_what_exists_is_counted_at_every_moment(self, host, fake, spec, given_up):
        fake.fault("create", until=(goes_on := asyncio.Event()))
        create = asyncio.create_task(host.create(spec))
        await eventually(lambda: fake.calls["create"])
        if given_up:
            create.cancel()
        goes_on.set()
        while not create.done() or (given_up and host.live):
            await asyncio.sleep(0)
            assert host.live >= len(fake.sandboxes)
        assert host.live == len(fake.sandboxes) == (0 if given_up else 1)

    async def test_a_deadline_around_create_leaks_nothing(self, host, fake, spec):
        fake.fault("create", until=(goes_on := asyncio.Event()), times=5)

        async def late():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(host.create(spec), 0.01)

        await asyncio.gather(*(late() for _ in range(5)))
        goes_on.set()
        await eventually(lambda: host.live == 0)
        assert fake.sandboxes == {}

    async def test_a_cancelled_create_gives_its_running_place_back(self, fake):
        host = SandboxHost(fake, max_running=1)
        spec = SandboxSpec(await fake.prepare(IMAGE), 60)
        fake.fault("create", until=(goes_on := asyncio.Event()))
        create = asyncio.create_task(host.create(spec))
        await eventually(lambda: fake.calls["create"])
        create.cancel()
        with pytest.raises(asyncio.CancelledError):
            await create
        goes_on.set()
        box = await asyncio.wait_for(host.create(spec), 60)
        assert set(fake.sandboxes) == {box.id}
        await host.aclose()

    async def test_a_failed_create_gives_its_running_place_back(self, fake):
        host = SandboxHost(fake, max_running=1)
        spec = SandboxSpec(await fake.prepare(IMAGE), 60)
        fake.fault("create", error=ImageError("broken"), times=3)
        for _ in range(3):
            with pytest.raises(ImageError):
                await host.create(spec)
        await asyncio.wait_for(host.create(spec), 60)
        await host.aclose()

    async def test_an_image_that_was_removed_is_prepared_again(self, host, fake):
        spec = SandboxSpec(await host.prepare(IMAGE), 60)
        fake._images.clear()
        assert (await host.create(spec)).id in fake.sandboxes
        assert fake.calls["prepare"] == 2

    async def test_but_not_one_of_other_content(self, host, fake, monkeypatch):
        spec = SandboxSpec(await host.prepare(IMAGE), 60)
        fake._images.clear()
        monkeypatch.setattr(fake, "prepare", lambda image: asyncio.sleep(0, "another"))
        with pytest.raises(ImageError, match="no prepared image"):
            await host.create(spec)

    async def test_and_once_only(self, host, fake):
        spec = SandboxSpec(await host.prepare(IMAGE), 60)
        fake.fault("create", error=ImageError("its program is missing"), times=9)
        with pytest.raises(ImageError, match="its program"):
            await host.create(spec)
        assert (fake.calls["create"], fake.calls["prepare"]) == (2, 2)

    async def test_a_create_of_unknown_effect_is_looked_for_and_undone(self, host, fake, spec):
        fake.fault("create", error=Unavailable("the answer was lost"), after=True)
        box = await host.create(spec)
        assert (fake.created, fake.killed, list(fake.sandboxes)) == (2, 1, [box.id])

    async def test_a_second_loss_is_told(self, host, fake, spec):
        fake.fault("create", error=Unavailable("the answer was lost"), after=True, times=9)
        with pytest.raises(Unavailable, match="lost"):
            await host.create(spec)
        assert (fake.created, fake.killed, fake.sandboxes) == (2, 2, {})

    async def test_what_cant_be_looked_for_is_not_tried_again(self, host, fake, spec):
        fake.fault("create", error=Unavailable("the answer was lost"), after=True)
        fake.fault("list", error=Unavailable("no answer"))
        with pytest.raises(Unavailable, match="the answer was lost"):
            await host.create(spec)
        assert fake.created == 1

    async def test_one_that_never_answers_is_given_up_in_the_end(self, host, fake, spec, monkeypatch):
        monkeypatch.setattr(host_module, "UNDO_BUDGET", 0.05)
        fake.fault("create", hang=True, after=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(host.create(spec), 0.01)
        await eventually(lambda: host.live == 0)
        assert (fake.created, fake.killed, fake.sandboxes) == (1, 1, {})

    async def test_200_cancels_at_any_moment_leak_nothing(self):
        fake, chance = FakeProvider(start_time=0.001), random.Random(7)
        host = SandboxHost(fake, max_starting=6, max_running=12)
        spec = SandboxSpec(await fake.prepare(IMAGE), 60)
        fake.fault("create", error=Busy("full", retry_after=0.001), times=30)
        fake.fault("create", error=Unavailable("lost"), after=True, times=10)

        async def rollout(alone):
            place = None if alone else await host.place()
            try:
                box = await host.create(spec, place=place)
                try:
                    await asyncio.sleep(chance.random() / 300)
                finally:
                    await host.destroy(box.id)
            finally:
                if place is not None:
                    place.leave()

        rollouts = [asyncio.create_task(rollout(number % 2)) for number in range(240)]
        for number in chance.sample(range(240), 200):
            await asyncio.sleep(chance.random() / 1000)
            rollouts[number].cancel()
        await asyncio.wait_for(asyncio.gather(*rollouts, return_exceptions=True), 60)
        await eventually(lambda: host.live == 0)
        assert fake.sandboxes == {}
        assert fake.most_starting <= 6
        assert fake.most <= 12
        rooms = [host.spare_place() for _ in range(7)]
        assert [room is not None for room in rooms] == [True] * 6 + [False], "every place came back"
        await host.aclose()

    async def test_a_provider_at_its_limit_is_asked_again(self):
        fake = FakeProvider(capacity=4)
        host = SandboxHost(fake)
        spec = SandboxSpec(await fake.prepare(IMAGE), 60)

        async def rollout():
            box = await host.create(spec)
            await asyncio.sleep(0)
            await host.destroy(box.id)

        await asyncio.wait_for(asyncio.gather(*(rollout() for _ in range(16))), 60)
        assert (fake.created, fake.most) == (16, 4)
        await host.aclose()

    async def test_a_provider_that_stays_at_its_limit_is_given_up(self, host, fake, spec, monkeypatch):
        monkeypatch.setattr(creates_module, "BUDGET", 0.2)
        fake.fault("create", error=Busy("quota", retry_after=0.05), times=100)
        with pytest.raises(Busy, match="quota"):
            await asyncio.wait_for(host.create(spec), 60)

    async def test_the_limits_are_kept(self):
        fake = FakeProvider()
        host = SandboxHost(fake, max_starting=3, max_running=5)
        spec = SandboxSpec(await fake.prepare(IMAGE), 60)
        fake.fault("create", until=(starts := asyncio.Event()), times=20)
        full = asyncio.Event()

        async def rollout():
            box = await host.create(spec)
            await full.wait()
            await host.destroy(box.id)

        rollouts = [asyncio.create_task(rollout()) for _ in range(20)]
        await eventually(lambda: fake.calls["create"] == 3)
        starts.set()
        await eventually(lambda: len(fake.sandboxes) == 5)
        full.set()
        await asyncio.gather(*rollouts)
        assert fake.created == 20
        assert fake.most_starting == 3
        assert fake.most == 5
        await host.aclose()


class TestDestroy:
    async def test_it_is_idempotent(self, host, fake, spec):
        box = await host.create(spec)
        assert await host.destroy(box.id) is True
        assert await host.destroy(box.id) is False
        assert await host.destroy("never-was") is False

    async def test_callers_at_once_share_one_kill(self, host, fake, spec):
        box = await host.create(spec)
        fake.fault("kill", delay=0.01)
        assert await asyncio.gather(*(host.destroy(box.id) for _ in range(5))) == [True] * 5
        assert fake.calls["kill"] == 1

    @pytest.mark.parametrize("error", [Unavailable("no answer"), Busy("later", retry_after=0.01), KeyError("bug")])
    async def test_it_is_tried_until_it_works(self, host, fake, spec, error):
        box = await host.create(spec)
        fake.fault("kill", error=error, times=2)
        assert await asyncio.wait_for(host.destroy(box.id), 60) is True
        assert host.live == 0

    async def test_a_cancelled_caller_doesnt_stop_it(self, host, fake, spec):
        box = await host.create(spec)
        fake.fault("kill", delay=0.02)
        caller = asyncio.create_task(host.destroy(box.id))
        await eventually(lambda: fake.calls["kill"])
        caller.cancel()
        await eventually(lambda: host.live == 0)
        assert fake.sandboxes == {}

    async def test_a_hang_keeps_its_caller_only_for_the_budget(self, host, fake, spec, monkeypatch):
        monkeypatch.setattr(host_module, "DESTROY_BUDGET", 0.05)
        monkeypatch.setattr(host_module, "KILL_TIMEOUT", 0.2)
        box = await host.create(spec)
        fake.fault("kill", hang=True)
        with pytest.raises(Unavailable, match=f"{box.id} could not be ended within 0.05 s"):
            await host.destroy(box.id)
        assert host.live == 1, "what may still stand counts"
        await eventually(lambda: host.live == 0)  # behind, the next try works

    async def test_one_that_died_by_itself_frees_its_place(self, fake):
        host = SandboxHost(fake, max_running=1)
        spec = SandboxSpec(await fake.prepare(IMAGE), 60)
        box = await host.create(spec)
        fake.die(box.id)
        with pytest.raises(Gone):
            await box.exec(["true"])
        await host.destroy(box.id)
        await asyncio.wait_for(host.create(spec), 60)
        await host.aclose()


class TestPrepare:
    async def test_callers_at_once_share_one_build(self, host, fake):
        fake.fault("prepare", delay=0.01)
        assert len(set(await asyncio.gather(*(host.prepare(IMAGE) for _ in range(8))))) == 1
        assert fake.calls["prepare"] == 1
        await host.prepare(IMAGE)
        assert fake.calls["prepare"] == 2, "only what is under way is shared: content may change"

    async def test_one_caller_leaving_doesnt_stop_it_for_the_others(self, host, fake):
        fake.fault("prepare", delay=0.02)
        leaving, staying = (asyncio.create_task(host.prepare(IMAGE)) for _ in range(2))
        await eventually(lambda: fake.calls["prepare"])
        leaving.cancel()
        assert await staying

    async def test_the_last_caller_leaving_stops_it(self, host, fake):
        fake.fault("prepare", hang=True)
        caller = asyncio.create_task(host.prepare(IMAGE))
        await eventually(lambda: fake.calls["prepare"])
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await asyncio.wait_for(host.prepare(IMAGE), 60)

    async def test_a_failure_reaches_all_and_is_not_kept(self, host, fake):
        fake.fault("prepare", error=ImageError("no space"))
        answers = await asyncio.gather(*(host.prepare(IMAGE) for _ in range(3)), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["no space"] * 3
        assert await host.prepare(IMAGE)

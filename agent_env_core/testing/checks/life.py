"""Checks of a sandbox's life: creating, finding, leases, ending."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid

import pytest

from agent_env_core.errors import Gone, ImageError, SandboxError, Unsupported
from agent_env_core.sandbox.contract import Sandbox
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.sandbox.leases import OWNER_LABEL, Owner, expiry, lease_labels, reap, why_expired
from agent_env_core.sandbox.machine import boot_id, host_id
from agent_env_core.testing.checks.base import PORT, Boxes, Kit, eventually
from agent_env_core.testing.checks.commands import ENOUGH


async def is_gone(box: Sandbox) -> bool:
    """Whether every method says that the sandbox has ended."""
    calls = (box.exec(["true"], timeout=ENOUGH), box.read("/kit/x"), box.write("/kit/x", b""), box.endpoint(PORT))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return all(isinstance(answer, Gone) for answer in answers)


class LifeChecks(Kit):
    """Creating, listing, attaching, leases, ending. Needs the programs ``true``, ``false``, ``echo`` and ``sleep``."""

    async def test_a_sandbox_without_a_command_stays(self, boxes: Boxes) -> None:
        box = await boxes.make()
        assert (await box.exec(["true"], timeout=ENOUGH)).exit_code == 0
        assert box.id in await boxes.listed()

    async def test_kill_is_final_and_may_be_repeated(self, boxes: Boxes) -> None:
        box = await boxes.make(ports=(PORT,), port_env={"KIT_PORT": PORT})
        assert await boxes.provider.kill(box.id) is True
        assert await boxes.provider.kill(box.id) is False
        assert await is_gone(box)
        with pytest.raises(Gone):
            await boxes.provider.attach(box.id)
        assert await boxes.listed() == {}

    async def test_of_many_kills_at_once_one_finds_it(self, boxes: Boxes) -> None:
        box = await boxes.make()
        answers = await asyncio.gather(*(boxes.provider.kill(box.id) for _ in range(4)))
        assert any(answers)
        assert await boxes.listed() == {}

    @pytest.mark.parametrize("unknown", ["no-such-sandbox", "../escape", "", "a" * 64])
    async def test_an_unknown_id_is_nothing(self, boxes: Boxes, unknown: str) -> None:
        assert await boxes.provider.kill(unknown) is False
        with pytest.raises(Gone):
            await boxes.provider.attach(unknown)

    async def test_kill_interrupts_a_command(self, boxes: Boxes) -> None:
        box = await boxes.make()
        call = asyncio.create_task(box.exec(["sleep", "600"]))
        await box.exec(["true"], timeout=ENOUGH)  # the other one is on its way by now
        await boxes.provider.kill(box.id)
        with pytest.raises(Gone):
            await asyncio.wait_for(call, 30)

    async def test_the_end_of_the_main_process_is_the_end(self, boxes: Boxes) -> None:
        box = await boxes.make(command=("false",))
        await eventually(lambda: is_gone(box), 60)
        await boxes.provider.kill(box.id)
        assert await boxes.listed() == {}

    async def test_attach_finds_the_same_sandbox(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/x", b"1")
        again = await boxes.provider.attach(box.id)
        assert again.id == box.id
        assert await again.read("/kit/x") == b"1"
        assert (await again.exec(["echo", "hi"], timeout=ENOUGH)).stdout == b"hi\n"

    async def test_list_finds_by_all_labels_and_gives_all(self, boxes: Boxes) -> None:
        colour = {"kit.colour": uuid.uuid4().hex}
        one, two = await boxes.make(labels=colour), await boxes.make(labels={**colour, "kit.size": "big"})
        await boxes.make()
        found = await boxes.listed(colour)
        assert set(found) == {one.id, two.id}
        assert boxes.labels.items() <= found[one.id].labels.items()
        assert set(await boxes.listed({**colour, "kit.size": "big"})) == {two.id}
        assert await boxes.listed({**colour, "kit.size": "small"}) == {}
        await boxes.provider.kill(one.id)
        assert set(await boxes.listed(colour)) == {two.id}

    async def test_list_without_labels_gives_everything(self, boxes: Boxes) -> None:
        made = {(await boxes.make()).id for _ in range(2)}
        assert made <= set(await boxes.listed({}))

    # -- leases

    async def test_a_living_owners_lease_is_respected(self, boxes: Boxes) -> None:
        box = await boxes.make()
        assert not await reap(boxes.provider, boxes.run)
        assert (await box.exec(["true"], timeout=ENOUGH)).exit_code == 0

    async def test_what_a_dead_owner_left_is_reaped(self, boxes: Boxes) -> None:
        ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await ended.wait()
        dead = Owner(host_id(), boot_id(), ended.pid, "1")
        box, other = await boxes.make(labels={OWNER_LABEL: str(dead)}), await boxes.make()
        reaped = await reap(boxes.provider, boxes.run)
        assert (set(reaped.killed), reaped.failed) == ({box.id}, {})
        assert await is_gone(box)
        assert set(await boxes.listed()) == {other.id}

    async def test_an_ended_lease_is_reaped(self, boxes: Boxes) -> None:
        box = await boxes.make(labels=lease_labels(Owner.current(), boxes.labels["agent-env.run"], 60))
        soon, later = time.time(), time.time() + 600
        assert not await reap(boxes.provider, boxes.run, why=lambda info: why_expired(info, now=soon))
        reaped = await reap(boxes.provider, boxes.run, why=lambda info: why_expired(info, now=later))
        assert set(reaped.killed) == {box.id}
        assert await is_gone(box)

    async def test_extend_moves_the_lease_where_that_is_claimed(self, boxes: Boxes) -> None:
        box = await boxes.make()
        if not boxes.provider.capabilities.extend:
            with pytest.raises(Unsupported):
                await box.extend(1000)
            return
        await box.extend(1000)
        ends = expiry((await boxes.listed())[box.id].labels)
        assert ends == pytest.approx(time.time() + 1000, abs=30)
        assert (await box.exec(["true"], timeout=ENOUGH)).exit_code == 0

    async def test_a_kept_ttl_ends_the_sandbox_where_that_is_claimed(self, boxes: Boxes) -> None:
        if not boxes.provider.capabilities.ttl_enforced:
            pytest.skip("the provider leaves the TTL to the reaper")
        box = await boxes.make(ttl=2)
        await eventually(lambda: is_gone(box), 60)

    # -- leaving nothing

    async def test_a_cancelled_create_leaves_nothing(self, boxes: Boxes) -> None:
        host = SandboxHost(boxes.provider, run_id=boxes.labels["agent-env.run"])
        cancelled = 0
        for delay in (0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06):  # at many points of the call
            create = asyncio.create_task(host.create(boxes.spec(labels={})))
            await asyncio.sleep(delay)
            create.cancel()
            try:
                await host.destroy((await create).id)
            except asyncio.CancelledError:
                cancelled += 1

        async def quiet() -> bool:
            return host.live == 0

        await eventually(quiet, 60)
        assert cancelled
        assert await boxes.listed() == {}

    async def test_a_failed_create_leaves_nothing(self, boxes: Boxes) -> None:
        with pytest.raises(SandboxError):
            await boxes.make(image="no-such-image-anywhere-0")
        assert await boxes.listed() == {}

    async def test_twenty_at_once(self, boxes: Boxes) -> None:
        made = await asyncio.gather(*(boxes.make() for _ in range(20)))
        assert len({box.id for box in made}) == 20
        said = await asyncio.gather(*(box.exec(["echo", box.id], timeout=ENOUGH) for box in made))
        assert [done.stdout.decode().strip() for done in said] == [box.id for box in made]
        assert set(await boxes.listed()) == {box.id for box in made}
        assert all(await asyncio.gather(*(boxes.provider.kill(box.id) for box in made)))
        assert await boxes.listed() == {}


class RefusalChecks(Kit):
    """What isn't claimed is refused before anything exists."""

    @pytest.mark.parametrize("ttl", [0, -1, float("inf"), float("nan")])
    async def test_a_ttl_must_be_finite_and_positive(self, boxes: Boxes, ttl: float) -> None:
        with pytest.raises(Unsupported, match="ttl"):
            await boxes.make(ttl=ttl)
        assert await boxes.listed() == {}

    async def test_a_ttl_past_the_longest_is_refused(self, boxes: Boxes) -> None:
        longest = boxes.provider.capabilities.max_ttl
        if longest is None:
            pytest.skip("the provider has no longest TTL")
        with pytest.raises(Unsupported, match="ttl"):
            await boxes.make(ttl=longest + 1)
        assert await boxes.listed() == {}

    async def test_a_gpu_is_refused_where_none_is_claimed(self, boxes: Boxes) -> None:
        if boxes.provider.capabilities.gpu:
            pytest.skip("the provider claims GPUs")
        with pytest.raises(Unsupported, match="T4"):
            await boxes.make(gpu="T4")
        assert await boxes.listed() == {}

    @pytest.mark.parametrize("limit", [{"cpu": 0.5}, {"memory_mb": 256}])
    async def test_limits_are_kept_or_refused(self, boxes: Boxes, limit: dict[str, float]) -> None:
        if boxes.provider.capabilities.limits:
            box = await boxes.make(**limit)
            assert (await box.exec(["true"], timeout=ENOUGH)).exit_code == 0
            return
        with pytest.raises(Unsupported, match="cpu and memory_mb"):
            await boxes.make(**limit)
        assert await boxes.listed() == {}

    async def test_the_isolation_is_named(self, boxes: Boxes) -> None:
        capabilities = boxes.provider.capabilities
        assert capabilities.isolation in ("none", "namespace", "container", "vm")
        assert "open" in capabilities.network
        assert boxes.provider.name

    async def test_an_unprepared_image_is_an_image_error(self, boxes: Boxes) -> None:
        with pytest.raises(ImageError, match="no-such-image"):
            await boxes.make(image="no-such-image-anywhere-0")

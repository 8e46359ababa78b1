"""Checks of a sandbox's life: creating, finding, attaching, ending. They need `true`, `false`, `echo`, `sleep`."""

from __future__ import annotations

import asyncio
import uuid

from agent_env_core.errors import Gone, SandboxError
from agent_env_core.sandbox.contract import Sandbox, SandboxProvider
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.testing.checks.base import ENOUGH, PORT, Skipped, Subject, Trial, eventually, raises, same, true

SUBJECT = Subject("life")

MOMENTS = (0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06)
"""Seconds after which a create is cut off, to hit many points of it."""


async def is_gone(box: Sandbox) -> bool:
    """Whether every method says that the sandbox has ended."""
    calls = (box.exec(["true"], timeout=ENOUGH), box.read("/kit/x"), box.write("/kit/x", b""), box.endpoint(PORT))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return all(isinstance(answer, Gone) for answer in answers)


@SUBJECT.check(boxes=0)
async def the_provider_has_the_contracts_shape(trial: Trial) -> None:
    true(isinstance(trial.provider, SandboxProvider), "the provider lacks a method of SandboxProvider")
    true(trial.provider.name, "the provider must have a name")
    isolations = ("none", "namespace", "container", "vm")
    true(trial.can.isolation in isolations, f"isolation={trial.can.isolation!r} must be one of {isolations}")
    true("open" in trial.can.network, "network='open' must be kept by every provider")


@SUBJECT.check()
async def a_sandbox_without_a_command_stays(trial: Trial) -> None:
    box = await trial.make()
    true(isinstance(box, Sandbox), "what create returns lacks a method of Sandbox")
    true(isinstance(box.id, str) and box.id, f"a sandbox's id must be a text, and is {box.id!r}")
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0)
    same(set(await trial.listed()), {box.id})


@SUBJECT.check(boxes=2)
async def what_exists_is_what_is_listed(trial: Trial) -> None:
    if trial.tested.outside is None:
        raise Skipped("nobody counts outside the provider what exists here")
    same(len(await trial.outside()), 0, "before anything is made")
    boxes = [await trial.make(), await trial.make()]
    true(await trial.outside(), "sandboxes exist, and nothing is seen of them outside the provider")
    for box in boxes:
        await trial.provider.kill(box.id)

    async def nothing() -> bool:
        return not await trial.outside()

    await eventually(nothing, 20, "nothing may exist once all was ended")


@SUBJECT.check()
async def kill_is_final_and_may_be_repeated(trial: Trial) -> None:
    box = await trial.make(ports=(PORT,), port_env={"KIT_PORT": PORT})
    same([await trial.provider.kill(box.id), await trial.provider.kill(box.id)], [True, False], "two kills")
    true(await is_gone(box), "every method of a sandbox that was killed must raise Gone")
    with raises(Gone):
        await trial.provider.attach(box.id)
    same(set(await trial.listed()), set())


@SUBJECT.check()
async def of_many_kills_at_once_one_finds_it(trial: Trial) -> None:
    box = await trial.make()
    answers = await asyncio.gather(*(trial.provider.kill(box.id) for _ in range(4)))
    true(any(answers), "none of four kills at once says that there was a sandbox")
    same(set(await trial.listed()), set())


@SUBJECT.check(boxes=2)
async def kill_ends_no_other_sandbox(trial: Trial) -> None:
    one, other = await trial.make(), await trial.make()
    await trial.provider.kill(one.id)
    same((await other.exec(["echo", "here"], timeout=ENOUGH)).stdout, b"here\n")
    same(set(await trial.listed()), {other.id})


@SUBJECT.check(boxes=0)
async def an_unknown_id_is_nothing(trial: Trial) -> None:
    for unknown in ("no-such-sandbox", "../escape", "", "a" * 64):
        same(await trial.provider.kill(unknown), False, f"kill({unknown!r})")
        with raises(Gone):
            await trial.provider.attach(unknown)


@SUBJECT.check()
async def kill_interrupts_a_command(trial: Trial) -> None:
    box = await trial.make()
    call = asyncio.create_task(box.exec(["sleep", "600"]))
    await box.exec(["true"], timeout=ENOUGH)  # the other one is on its way by now
    await trial.provider.kill(box.id)
    with raises(Gone):
        await asyncio.wait_for(call, 30)


@SUBJECT.check()
async def the_end_of_the_main_process_is_the_end(trial: Trial) -> None:
    box = await trial.make(command=("false",))
    await eventually(lambda: is_gone(box), 60, "a sandbox must end with its main process")
    await trial.provider.kill(box.id)
    same(set(await trial.listed()), set(), "after the kill of what had ended by itself")


@SUBJECT.check()
async def a_main_process_that_is_not_there_is_an_error_or_the_end(trial: Trial) -> None:
    try:
        box = await trial.make(command=("no-such-program-anywhere",))
    except SandboxError:
        return
    await eventually(lambda: is_gone(box), 60, "a sandbox must end where its main process can't be started")


@SUBJECT.check()
async def attach_finds_the_same_sandbox(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/x", b"1")
    again = await trial.provider.attach(box.id)
    same(again.id, box.id)
    same(await again.read("/kit/x"), b"1")
    same((await again.exec(["echo", "hi"], timeout=ENOUGH)).stdout, b"hi\n")


@SUBJECT.check(boxes=3)
async def list_finds_by_all_labels_and_gives_all(trial: Trial) -> None:
    colour = {"kit.colour": uuid.uuid4().hex}
    one, two = await trial.make(labels=colour), await trial.make(labels={**colour, "kit.size": "big"})
    await trial.make()
    found = await trial.listed(colour)
    same(set(found), {one.id, two.id})
    true(trial.labels.items() <= found[one.id].labels.items(), f"labels are missing in {found[one.id].labels}")
    same(set(await trial.listed({**colour, "kit.size": "big"})), {two.id})
    same(set(await trial.listed({**colour, "kit.size": "small"})), set())
    await trial.provider.kill(one.id)
    same(set(await trial.listed(colour)), {two.id})


@SUBJECT.check(boxes=2)
async def list_without_labels_gives_everything(trial: Trial) -> None:
    made = {(await trial.make()).id for _ in range(2)}
    true(made <= set(await trial.listed({})), "list({}) lacks sandboxes that exist")


@SUBJECT.check(boxes=len(MOMENTS))
async def a_cancelled_create_leaves_nothing(trial: Trial) -> None:
    host = SandboxHost(trial.provider, run_id=trial.run_id)
    cancelled = 0
    for moment in MOMENTS:
        trial.spend()
        create = asyncio.create_task(host.create(trial.spec(labels={})))
        await asyncio.sleep(moment)
        create.cancel()
        try:
            await host.destroy((await create).id)
        except asyncio.CancelledError:
            cancelled += 1

    async def quiet() -> bool:
        return host.live == 0

    await eventually(quiet, 60, "what cancelled creates had begun must be undone")
    true(cancelled, "no create took long enough to be cancelled")
    same(set(await trial.listed()), set())


@SUBJECT.check(boxes=len(MOMENTS))
async def a_create_that_is_cut_off_hides_nothing(trial: Trial) -> None:
    """The core never cancels a provider's create, unless its process must end at once: what is left is then reaped."""
    for moment in MOMENTS:
        trial.spend()
        create = asyncio.create_task(trial.provider.create(trial.spec()))
        await asyncio.sleep(moment)
        create.cancel()
        await asyncio.gather(create, return_exceptions=True)
    for sandbox_id in await trial.listed():
        await trial.provider.kill(sandbox_id)

    async def nothing() -> bool:
        return not await trial.outside() and not await trial.listed()

    await eventually(nothing, 30, "what a create that was cut off has left must be listed, so that it can be ended")


@SUBJECT.check()
async def a_failed_create_leaves_nothing(trial: Trial) -> None:
    await trial.refuses(SandboxError, image="no-such-image-anywhere-0")
    same(list(await trial.outside()), [], "what a failed create left, seen from outside")


@SUBJECT.check(boxes=20)
async def twenty_at_once(trial: Trial) -> None:
    made = await asyncio.gather(*(trial.make() for _ in range(20)))
    same(len({box.id for box in made}), 20, "different ids")
    said = await asyncio.gather(*(box.exec(["echo", box.id], timeout=ENOUGH) for box in made))
    same([done.stdout.decode().strip() for done in said], [box.id for box in made])
    same(set(await trial.listed()), {box.id for box in made})
    true(all(await asyncio.gather(*(trial.provider.kill(box.id) for box in made))), "a kill says there was nothing")
    same(set(await trial.listed()), set())

"""Checks of ``prepare``: images built from a folder, or taken from a registry."""

from __future__ import annotations

import asyncio

from agent_env_core.errors import ImageError, Unavailable, Unsupported
from agent_env_core.sandbox.contract import Image
from agent_env_core.testing.checks.base import ENOUGH, Skipped, Subject, Trial, raises, same, true

SUBJECT = Subject("images")


@SUBJECT.check(boxes=0, builds=1)
async def preparing_again_gives_the_same(trial: Trial) -> None:
    image = trial.built("COPY hello.txt /kit/hello.txt", hello__txt="hello")
    one, two = await asyncio.gather(trial.provider.prepare(image), trial.provider.prepare(image))
    same((two, await trial.provider.prepare(image)), (one, one))


@SUBJECT.check(boxes=0, builds=2)
async def other_content_is_another_image(trial: Trial) -> None:
    image = trial.built("COPY hello.txt /kit/hello.txt", hello__txt="one")
    before = await trial.provider.prepare(image)
    (trial.folder / "hello.txt").write_text("two", encoding="utf-8")
    true(await trial.provider.prepare(image) != before, "a changed file gave the same image")


@SUBJECT.check(builds=1)
async def an_image_holds_what_its_dockerfile_says(trial: Trial) -> None:
    lines = ("WORKDIR /kit/work", 'ENV GREETING="good day"', "COPY hello.txt .")
    image = trial.built(*lines, hello__txt="hello")
    box = await trial.make(image=await trial.provider.prepare(image))
    same(await box.read("/kit/work/hello.txt"), b"hello")
    done = await box.exec(["sh", "-c", 'echo "$GREETING"; cat hello.txt'], timeout=ENOUGH)
    same(done.stdout, b"good day\nhello")


@SUBJECT.check(boxes=2, builds=1)
async def a_sandbox_changes_no_image(trial: Trial) -> None:
    image = trial.built("COPY hello.txt /kit/hello.txt", hello__txt="hello")
    prepared = await trial.provider.prepare(image)
    one = await trial.make(image=prepared)
    await one.write("/kit/hello.txt", b"changed")
    other = await trial.make(image=prepared)
    same(await other.read("/kit/hello.txt"), b"hello")


@SUBJECT.check(boxes=4, builds=2)
async def an_images_own_command_is_never_relied_on(trial: Trial) -> None:
    for line in ('CMD ["false"]', 'ENTRYPOINT ["false"]'):
        image = await trial.provider.prepare(trial.built(line))
        idle, busy = await trial.make(image=image), await trial.make(image=image, command=("sleep", "600"))
        for box in (idle, busy):
            same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0, f"a sandbox of an image with {line}")


@SUBJECT.check(boxes=0, builds=1)
async def a_failed_build_is_an_image_error_and_says_why(trial: Trial) -> None:
    image = trial.built("RUN echo why it failed && exit 7")
    with raises(ImageError):
        await trial.provider.prepare(image)


@SUBJECT.check(boxes=0)
async def a_missing_dockerfile_is_an_image_error(trial: Trial) -> None:
    if not trial.can.build:
        raise Skipped("the provider builds no images")
    with raises(ImageError, says="Dockerfile"):
        await trial.provider.prepare(Image(context=trial.folder))


@SUBJECT.check(builds=1)
async def a_reference_is_prepared_where_that_is_claimed(trial: Trial) -> None:
    image = Image(ref=trial.tested.base_image)
    if not trial.can.refs:
        with raises(Unsupported, says="registry"):
            await trial.provider.prepare(image)
        return
    prepared = await trial.provider.prepare(image)
    same(await trial.provider.prepare(image), prepared, "the same reference, prepared again")
    box = await trial.make(image=prepared)
    same((await box.exec(["true"], timeout=ENOUGH)).exit_code, 0)


@SUBJECT.check(boxes=0)
async def a_reference_to_nothing_is_an_image_error(trial: Trial) -> None:
    if not trial.can.refs:
        raise Skipped("the provider takes no references")
    with raises(ImageError, Unavailable):  # Unavailable, where no registry can be asked
        await trial.provider.prepare(Image(ref="docker.io/library/no-such-image-anywhere:0"))


@SUBJECT.check(boxes=0)
async def a_dockerfile_is_refused_where_building_is_not_claimed(trial: Trial) -> None:
    if trial.can.build:
        raise Skipped("the provider builds images")
    with raises(Unsupported, says="Dockerfile"):
        await trial.provider.prepare(trial.context("FROM scratch\n"))


@SUBJECT.check(boxes=0, builds=2)
async def a_cancelled_prepare_may_be_made_again(trial: Trial) -> None:
    image = trial.built("COPY hello.txt /kit/hello.txt", hello__txt=f"cancelled {trial.run_id}")
    first = asyncio.create_task(trial.provider.prepare(image))
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    same(await trial.provider.prepare(image), await trial.provider.prepare(image))

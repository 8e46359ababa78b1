"""Images on a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import time
import uuid

import docker
import pytest
from agent_env_docker import builders, work
from agent_env_docker.provider import DockerProvider
from agent_env_docker.settings import Settings

from agent_env_core.errors import ImageError
from agent_env_core.sandbox.contract import Image, SandboxSpec

pytestmark = pytest.mark.docker
BASE = "python:3.11-slim"


async def test_a_second_prepare_asks_the_engine_for_nothing_but_the_name(provider, context, monkeypatch):
    image = Image(context=context(f"FROM {BASE}\nRUN echo built > /mark\n"))
    first = await provider.prepare(image)
    assert first.startswith("agent-env/t-")

    def never(*_):
        raise AssertionError("it was built again")

    monkeypatch.setattr(work.Build, "run", never)
    asked, send = [], docker.APIClient.send
    monkeypatch.setattr(docker.APIClient, "send", lambda *args, **more: asked.append(args[1]) or send(*args, **more))
    assert await provider.prepare(image) == first
    assert [(request.method, request.url.rpartition("/v1")[2].partition("/images")[2]) for request in asked] == [
        ("GET", f"/{BASE}/json"),
        ("GET", f"/{first}/json"),
    ]
    again = DockerProvider(provider.settings)
    assert await again.prepare(image) == first
    await again.aclose()


async def test_the_image_is_labelled_so_that_it_can_be_pruned(provider, context, engine):
    tag = await provider.prepare(Image(context=context(f"FROM {BASE}\n")))
    assert engine.api.inspect_image(tag)["Config"]["Labels"]["agent-env.image"] == "1"


async def test_changed_content_makes_another_image(provider, context):
    dockerfile = f"FROM {BASE}\nCOPY data /data\n"
    first = await provider.prepare(Image(context=context(dockerfile, data="1")))
    assert await provider.prepare(Image(context=context(dockerfile, data="2"))) != first
    assert await provider.prepare(Image(context=context(dockerfile, data="1"))) == first


async def test_a_failed_build_leaves_no_container_and_shows_its_end(provider, context, engine):
    seen = _watch_containers(engine)
    root = context(f"FROM {BASE}\nRUN for i in $(seq 100); do echo line $i; done; echo the cause >&2; exit 3\n")
    with pytest.raises(ImageError) as caught:
        await provider.prepare(Image(context=root))
    message = str(caught.value)
    assert f"{root}/Dockerfile does not build" in message
    assert "non-zero code: 3" in message
    assert "the cause" in message
    assert "line 1\n" not in message
    assert len(message.splitlines()) <= 31
    assert not seen()


async def test_a_build_that_is_cancelled_is_dropped_by_the_engine(provider, context, engine):
    seen = _watch_containers(engine)
    build = asyncio.create_task(provider.prepare(Image(context=context(f"FROM {BASE}\nRUN sleep 60\n"))))
    await _until(lambda: any("sleep 60" in command for command in seen()))
    build.cancel()
    with pytest.raises(asyncio.CancelledError):
        await build
    await _until(lambda: not seen())


async def test_two_processes_build_once(provider, context, caplog):
    caplog.set_level(logging.INFO, logger="agent_env_docker")
    image = Image(context=context(f"FROM {BASE}\nRUN echo once > /mark\n"))
    other = DockerProvider(
        provider.settings
    )  # the lock is between open files, so another provider is as good as another process
    assert len(set(await asyncio.gather(provider.prepare(image), other.prepare(image)))) == 1
    await other.aclose()
    assert sum("building an image" in record.message for record in caplog.records) == 1
    assert any("Step 2/" in record.message for record in caplog.records)


async def test_a_reference_that_is_here_is_not_pulled(provider, engine):
    assert await provider.prepare(Image(ref=BASE)) == engine.api.inspect_image(BASE)["Id"]


async def test_a_reference_that_cannot_be_pulled(provider):
    with pytest.raises(ImageError, match=r"localhost:1/none:1 is not on this engine and can't be pulled"):
        await provider.prepare(Image(ref="localhost:1/none:1"))


async def test_what_only_buildkit_can_do_is_said(provider, context):
    root = context(f"FROM {BASE}\nRUN --mount=type=cache,target=/x true\n")
    with pytest.raises(ImageError, match="classic builder"):
        await provider.prepare(Image(context=root))


async def test_a_changed_base_image_makes_another_image(provider, context, engine, tmp_path):
    name = f"agent-env-test-base-{tmp_path.name.lower()}"
    image = Image(context=context(f"FROM {name}\nRUN cat /which > /seen\n"))
    try:
        made = []
        for which in ("one", "two", "two"):
            _build(engine, name, f"FROM {BASE}\nRUN echo {which} > /which\n")
            made.append(await provider.prepare(image))
        assert made[0] != made[1] == made[2]
    finally:
        engine.api.remove_image(name, force=True)


def _build(engine, tag, dockerfile):
    list(engine.api.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True))


async def test_python_files_are_compiled_when_an_image_is_built(context, label, leftovers, engine):
    forget = "import json, os, shutil; shutil.rmtree(os.path.dirname(json.__file__) + '/__pycache__')"
    bare = f'RUN python3 -B -c "{forget}"\nRUN useradd me\nUSER me\nWORKDIR /app\n'
    root = context(f"FROM {BASE}\n{bare}COPY env.py .\n", **{"env.py": "import json\n"})
    compiling = DockerProvider(Settings(builder="classic"))
    prepared = await compiling.prepare(Image(context=root))
    box = await compiling.create(SandboxSpec(image=prepared, ttl=60, labels=label))
    done = await box.exec(["python3", "-v", "-c", "import json, env; import os; print(os.getuid())"])
    loaded = done.stderr.decode()
    assert "json/__pycache__/__init__" in loaded
    assert "/app/__pycache__/env." in loaded
    assert "wrote" not in loaded
    assert int(done.stdout) >= 1000, "the image's user is still its user"
    assert await compiling.kill(box.id)
    without = root.parent / root.name  # an image without Python is as good as it was
    (without / "Dockerfile").write_text(f"FROM {BASE}\nRUN rm -f /usr/local/bin/python3* /usr/bin/python3*\n")
    assert engine.api.inspect_image(await compiling.prepare(Image(context=without)))
    await compiling.aclose()


async def test_buildkit_is_used_where_it_is(provider, context, monkeypatch):
    found = next((path for path in ("/usr/bin", "/usr/local/bin") if _has_buildkit(path, monkeypatch)), None)
    if found is None:
        pytest.skip("no BuildKit here")
    monkeypatch.setenv("PATH", f"{found}:/usr/bin:/bin")
    builders.choose.cache_clear()
    modern = DockerProvider(Settings(builder="auto", bytecode=False))
    root = context(f"FROM {BASE}\nRUN --mount=type=cache,target=/x echo modern > /mark\n")
    tag = await modern.prepare(Image(context=root))
    assert await provider.prepare(Image(context=root)) == tag, "whichever built it"
    root = context(f"FROM {BASE}\nRUN echo the cause >&2; exit 3\n")
    with pytest.raises(ImageError, match=r"does not build: .*\n(.*\n)*.*the cause"):
        await modern.prepare(Image(context=root))
    await modern.aclose()
    builders.choose.cache_clear()


def _has_buildkit(path, monkeypatch):
    builders.choose.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("PATH", path)
        found = builders.choose("auto").command
    builders.choose.cache_clear()
    return bool(found)


async def test_what_is_unused_can_be_removed_and_nothing_else(provider, context, make, engine):
    tag = await provider.prepare(Image(context=context(f"FROM {BASE}\nRUN echo unused > /mark\n")))
    id = engine.api.inspect_image(tag)["Id"]
    assert tag in {name for thing in await provider.unused() for name in thing.what.split()}
    box = await make(tag)
    assert id not in {thing.id for thing in await provider.unused()}
    assert await provider.prune(id) is False
    await provider.kill(box.id)
    assert await provider.prune(id)
    assert await provider.prune(id) is False
    theirs = engine.api.inspect_image(BASE)["Id"]
    assert await provider.prune(theirs) is False
    assert engine.api.inspect_image(BASE)


async def test_what_others_made_of_ours_is_theirs(provider, context, engine):
    """An image that is built upon one of ours inherits its label, and a name that a person gave to ours is theirs."""
    from docker.errors import ImageNotFound

    derived, named, passing = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("derived", "named", "passing"))
    tag = await provider.prepare(Image(context=context(f"FROM {BASE}\nRUN echo theirs > /mark\n")))
    half = f"{tag.partition(':')[0]}:building-{passing}"
    dockerfile = io.BytesIO(f"FROM {tag}\nENV X=1\n".encode())
    list(engine.api.build(fileobj=dockerfile, tag=derived, rm=True, forcerm=True))
    engine.api.tag(tag, named)
    engine.api.tag(derived, half.partition(":")[0], half.partition(":")[2])
    try:
        listed = {name for thing in await provider.unused() for name in thing.what.split()}
        assert not listed & {tag, half, f"{derived}:latest", f"{named}:latest"}
        for name in (derived, named):
            assert await provider.prune(engine.api.inspect_image(name)["Id"]) is False
        engine.api.remove_image(derived)
        assert await provider.prune(engine.api.inspect_image(half)["Id"]) is False, "a build may be at it now"
    finally:
        for name in (derived, half, named):
            with contextlib.suppress(ImageNotFound):
                engine.api.remove_image(name)


async def test_the_command_of_an_image(provider, context):
    tag = await provider.prepare(Image(context=context(f'FROM {BASE}\nENTRYPOINT ["python3", "-m"]\nCMD ["this"]\n')))
    assert await provider.image_command(tag) == ("python3", "-m", "this")
    assert await provider.image_command(await provider.prepare(Image(ref=BASE))) in ((), ("python3",))


def _watch_containers(engine):
    """A function that gives the commands of containers that build steps have made since now."""
    before = {entry["Id"] for entry in engine.api.containers(all=True)}

    def new() -> list[str]:
        # A build's containers carry no label before its last step; other tests' ones do, or are named.
        return [
            entry["Command"]
            for entry in engine.api.containers(all=True)
            if entry["Id"] not in before and entry["Command"].startswith("/bin/sh -c")
        ]

    return new


async def _until(true, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

"""Images: built once for each content, or pulled once for each host.

A build is named by its content, ``agent-env/<folder>:<digest>``. The digest is taken over exactly what the engine is
sent (the files that ``.dockerignore`` leaves, with modes, owners and times made alike) and over the ids of the images
that it starts from. So two checkouts of one content share an image, whatever their umask, and a changed file or a
changed ``FROM`` image makes another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env_core.sandbox.contract import Unused
from agent_env_core.sandbox.locks import held, lock_path
from agent_env_docker import builders, network
from agent_env_docker.context import REPOSITORY, Context
from agent_env_docker.engine import Engine
from agent_env_docker.failure import image_id, inspect_image, translated
from agent_env_docker.settings import Settings
from agent_env_docker.work import IMAGE_LABEL, PASSING, Build, Pull, Work, bases, how

if TYPE_CHECKING:
    from docker import APIClient

LONGEST_BUILD = 6 * 3600.0
"""Seconds after which a build that left its passing name behind was certainly killed."""


async def build(engine: Engine, root: Path, dockerfile: str, settings: Settings) -> str:
    """The image of a build context, built where it is not there yet; one process of the machine builds at a time.

    Raises:
        ImageError: It does not build; the message ends with the build's last lines.
    """

    def find(client: APIClient) -> tuple[Context, str, bool]:
        with translated(f"looking for the image of {root}"):
            context = Context.read(root, dockerfile)
            tag = context.tag(context.digest(), bases(client, context), how(bytecode=settings.bytecode))
            return context, tag, image_id(client, tag) is not None

    context, tag, here = await engine.call(find)
    if here:
        return tag
    place = f"{context.root}/{context.dockerfile}"
    async with held(lock_path("docker", place), f"the image of {place}"):
        context, tag, here = await engine.call(find)
        if not here:
            builder = await asyncio.to_thread(builders.choose, settings.builder)
            tag = await _abandonable(engine, Build(engine, context, builder, bytecode=settings.bytecode))
    return tag


async def pull(engine: Engine, ref: str) -> str:
    """The id of the image ``ref`` names: the one this engine has, or else the registry's.

    Raises:
        ImageError: There is no such image, or it may not be pulled.
    """

    def find(client: APIClient) -> str | None:
        with translated(f"looking for the image {ref}"):
            return image_id(client, ref)

    found = await engine.call(find)
    if found is None:
        async with held(lock_path("docker", ref), f"the image {ref}"):
            found = await engine.call(find) or await _abandonable(engine, Pull(engine, ref))
    return found


async def command(engine: Engine, prepared: str) -> tuple[str, ...]:
    """ENTRYPOINT and CMD of an image as one argv."""

    def ask(client: APIClient) -> tuple[str, ...]:
        with translated(f"reading the image {prepared}"):
            config = inspect_image(client, prepared)["Config"] or {}
            return (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))

    return await engine.call(ask)


async def unused(engine: Engine) -> Sequence[Unused]:
    """The images that agent-env built on this engine, that no container is made of and no build under way needs."""

    def ask(client: APIClient) -> list[Unused]:
        with translated("looking for unused images"):
            busy = {container["ImageID"] for container in client.containers(all=True)}
            return [
                Unused(image["Id"], " ".join(names), image["Size"])
                for image, names in _ours(client)
                if image["Id"] not in busy
            ]

    return await engine.call(ask)


async def prune(engine: Engine, id: str) -> bool:
    """Removes one of :func:`unused`; False where it is gone, or used again."""
    from docker.errors import APIError

    def remove(client: APIClient) -> bool:
        with translated(f"removing the image {id}"):
            names = next((names for image, names in _ours(client) if image["Id"] == id), [])
            if not names:
                return False
            try:
                for name in names:
                    client.remove_image(name)
            except APIError as exc:
                if exc.status_code in (404, 409):  # gone, or a container uses it
                    return False
                raise
            network.remove_unused(client)
            return True

    return await engine.call(remove)


def _ours(client: APIClient) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The finished images that agent-env built, with their names.

    The label alone isn't enough: what somebody builds upon one of ours inherits it. So all names must be ours too.
    """
    for image in client.images(filters={"label": f"{IMAGE_LABEL}=1"}):
        names = [str(name) for name in image.get("RepoTags") or () if "<none>" not in str(name)]
        ours = [name for name in names if name.removeprefix("localhost/").startswith(REPOSITORY)]  # as Podman has it
        if not ours or ours != names:
            continue
        if any(PASSING in name for name in names) and time.time() - image["Created"] < LONGEST_BUILD:
            continue  # its build may still go on
        yield image, names


async def _abandonable(engine: Engine, work: Work) -> str:
    try:
        return await engine.thread(work.run)
    except asyncio.CancelledError:
        work.abandon()
        raise

"""Making an image: its files in a folder of its own, over a Python environment that it may share.

Each is built in its final place, under a lock that all processes of the machine respect. Its facts are written last and
in one step: until then the folder is a ruin that the next build clears away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env_core.errors import ConfigError, fix_for
from agent_env_core.sandbox.locks import held
from agent_env_process.commands import run
from agent_env_process.files import folder_size, remove_tree
from agent_env_process.images import Environment, ImageCache, PreparedImage
from agent_env_process.plan import Pip, Plan
from agent_env_process.replay import Replay
from agent_env_process.venvs import environment_key, into_tree, make_environment

log = logging.getLogger(__name__)


async def build(cache: ImageCache, plan: Plan) -> PreparedImage:
    """Makes an image, unless this or another process has.

    Raises:
        ImageError: A step failed; nothing is left of the image.
        ConfigError: The cache can't be written.
    """
    try:
        for folder in (cache.folder, cache.environments):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise ConfigError(
            f"process: can't write to {cache.folder} ({exc.strerror}); "
            f"{fix_for(exc, 'set XDG_CACHE_HOME to a local folder')}"
        ) from exc
    async with held(cache.lock(cache.place(plan.ref)), f"the image {plan.ref}"):
        found = cache.find(plan.ref)
        if found is not None:
            return found
        began = time.monotonic()
        log.info("preparing %s with Python %s", plan.dockerfile, plan.python.version)
        for note in plan.notes:
            log.info("%s, %s", plan.dockerfile, note)
        environment = await _environment(cache, plan)
        place = cache.place(plan.ref)
        async with _fresh(place):
            image = await _files(place, plan, environment)
        log.info("prepared %s in %.1f s", plan.dockerfile, time.monotonic() - began)
        return image


async def _environment(cache: ImageCache, plan: Plan) -> Environment:
    """The Python environment that the image needs, made where there is none yet."""
    key = environment_key(plan)
    place = cache.environment_place(key)
    async with held(cache.lock(place), f"the Python environment {key}"):
        found = cache.find_environment(key)
        if found is not None:
            found.touch()
            log.info("%s: what its pip commands install is here already", plan.dockerfile)
            return found
        async with _fresh(place):
            await make_environment(plan, place)
            environment = Environment(key, place, await asyncio.to_thread(folder_size, place))
            environment.save()
            return environment


async def _files(place: Path, plan: Plan, environment: Environment) -> PreparedImage:
    tree, python = place / "tree", environment.venv / "bin" / "python"
    replay = Replay(plan, tree, python)
    await replay.take(step for step in plan.steps if not isinstance(step, Pip) or into_tree(step))
    # Compiled once here, so that no sandbox spends its start on it.
    compiler = [str(python), "-m", "compileall", "-q", "-s", str(tree), "-p", "/"]
    await run([*compiler, str(tree)], place, {}, "compiling")
    image = PreparedImage(
        plan.ref,
        place,
        plan.workdir,
        plan.env,
        plan.command,
        replay.owned,
        environment.venv,
        plan.python.prefix,
        await asyncio.to_thread(folder_size, place),
    )
    image.save()
    return image


@asynccontextmanager
async def _fresh(place: Path) -> AsyncIterator[None]:
    """An empty place to build in; nothing is left there by a build that fails."""
    await asyncio.to_thread(remove_tree, place)
    await asyncio.to_thread(place.mkdir, parents=True)
    try:
        yield
    except BaseException:
        await asyncio.shield(asyncio.to_thread(remove_tree, place))
        raise

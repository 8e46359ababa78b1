"""Templates: what E2B starts sandboxes from, built once for each content.

A template's name is a digest of exactly what E2B is sent: the steps, the files they copy, cores and memory. It is built
by one process of the machine at a time, and carries the tag :data:`READY` once it is: E2B knows a name from the moment
its first build begins.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import ImageError
from agent_env_core.sandbox.contract import Image
from agent_env_core.sandbox.locks import held, lock_path
from agent_env_e2b.dockerfile import Plan, plan_of_context, plan_of_ref
from agent_env_e2b.failure import translated, words
from agent_env_e2b.settings import Settings
from agent_env_e2b.supervisor import IMAGE_ENV, IMAGE_WORKDIR

if TYPE_CHECKING:
    from e2b import TemplateClass

logger = logging.getLogger("agent_env_e2b")

READY = "agent-env-ready"
"""The tag of a template whose build has come to its end."""

_SCHEME = b"agent-env-e2b-1"  # part of every digest: raise it when the same files make another template
_PREPARED = re.compile(r"(agent-env-[a-z0-9-]+)@([A-Za-z_][A-Za-z0-9_.-]*)")
_TAIL = 30

_CAPTURE = f"mkdir -p {Path(IMAGE_ENV).parent} && env -0 > {IMAGE_ENV}"
"""Keeps what the image sets: E2B gives it to the steps of a build, and not to what runs in a sandbox."""


def parts(prepared: str) -> tuple[str, str]:
    """The template and the user of what :func:`prepare` returned.

    Raises:
        ImageError: It is nothing of that kind.
    """
    found = _PREPARED.fullmatch(prepared)
    if found is None:
        raise ImageError(f"e2b: {prepared!r} is no image that was prepared here; give what prepare returned")
    return found[1], found[2]


async def prepare(image: Image, settings: Settings, account: Mapping[str, Any]) -> str:
    """The template of an image, built where it isn't there yet.

    Args:
        image: A build context, or a registry reference.
        settings: Cores and memory.
        account: Where the SDK asks.

    Raises:
        ImageError: It does not build; the message ends with the build's last lines.
    """
    if image.context is not None:
        plan = await asyncio.to_thread(plan_of_context, image.context, image.dockerfile)
    else:
        plan = plan_of_ref(image.ref or "")
    try:
        template, digest = await asyncio.to_thread(_template, plan, settings)
    except Exception as exc:  # nobody was asked anything yet, so it is the Dockerfile or its files
        raise ImageError(f"e2b: {plan.what} can't be built: {words(exc)}") from exc
    name = f"agent-env-{plan.slug}-{digest}"
    if not await _is_ready(name, account):
        async with held(_lock(account, name), f"the template {name}"):
            if not await _is_ready(name, account):
                await _build(template, name, plan, settings, account)
    return f"{name}@{plan.user}"


def _template(plan: Plan, settings: Settings) -> tuple[TemplateClass, str]:
    """What is built, and the digest of it."""
    from e2b import AsyncTemplate

    if plan.context is not None:
        made = AsyncTemplate(file_context_path=str(plan.context)).from_dockerfile(plan.dockerfile)
    else:
        made = AsyncTemplate().from_image(plan.ref)
    # As the last steps, so that what came before decides: the user and the folder are not E2B's own defaults.
    made = made.set_user("root").set_workdir(plan.workdir or "/").run_cmd(_CAPTURE)
    if plan.workdir is not None:
        made = made.run_cmd(f'printf %s "$PWD" > {IMAGE_WORKDIR}')
    said = AsyncTemplate.to_json(made).encode()
    size = f"{settings.cpu} {settings.memory_mb}".encode()
    whole = hashlib.sha256(b"\0".join((_SCHEME, said, size, plan.user.encode())))
    return made, whole.hexdigest()[:16]


async def _is_ready(name: str, account: Mapping[str, Any]) -> bool:
    from e2b import AsyncTemplate

    with translated(f"looking for the template {name}", building=True):
        if not await AsyncTemplate.exists(name, **account):
            return False
        return any(tag.tag == READY for tag in await AsyncTemplate.get_tags(name, **account))


async def _build(
    template: TemplateClass, name: str, plan: Plan, settings: Settings, account: Mapping[str, Any]
) -> None:
    """Builds a template; where another machine's build of the same one got in between, looks, and tries once more."""
    for last in (False, True):
        try:
            await _build_once(template, name, plan, settings, account)
            return
        except ImageError as exc:
            if last or "cancel" not in str(exc).lower():
                raise
            if await _is_ready(name, account):
                return


async def _build_once(
    template: TemplateClass, name: str, plan: Plan, settings: Settings, account: Mapping[str, Any]
) -> None:
    from e2b import AsyncTemplate

    tail: deque[str] = deque(maxlen=_TAIL)

    def told(entry: Any) -> None:
        line = " ".join(str(entry.message).split())
        tail.append(line)
        logger.info("building %s: %s", plan.what, line)

    logger.info("building the template %s of %s", name, plan.what)
    no_limit = {key: value for key, value in account.items() if key != "request_timeout"}
    try:
        with translated(f"building {plan.what}", building=True):
            await AsyncTemplate.build(
                template, name, cpu_count=settings.cpu, memory_mb=settings.memory_mb, on_build_logs=told, **no_limit
            )
    except ImageError as exc:
        raise ImageError("\n  ".join((str(exc), *tail))) from exc
    with translated(f"tagging the template {name}"):
        await AsyncTemplate.assign_tags(name, READY, **account)
    logger.info("built the template %s", name)


def _lock(account: Mapping[str, Any], name: str) -> Path:
    """The file to lock for a template of an account."""
    key = hashlib.sha256(os.environ.get("E2B_API_KEY", "").encode()).hexdigest()
    return lock_path("e2b", f"{key} {account.get('domain')} {name}")

"""Commands of a build: logged, bounded in what is kept of their output, ended with everything they started."""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent_env_core.sandbox.commands import Kept
from agent_env_process.procs import end_all
from agent_env_process.spawn import Child

log = logging.getLogger(__name__)

HEARTBEAT = 15.0
"""Seconds after which a step that still runs says so."""

OUTPUT_LINES = 30
"""Lines of a failed command's output that its error holds."""

#: What a build may see of this process's environment: the search path, how to reach a package index, and no secrets
#: beyond that. Names that end in ``*`` stand for all that begin so.
_FOR_BUILDS = (
    "PATH", "HOME", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PIP_*", "XDG_CACHE_HOME", "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "ALL_PROXY",
)  # fmt: skip


async def run(argv: Sequence[str], cwd: Path, env: Mapping[str, str], told: str) -> tuple[bytes, int]:
    """Runs a build command; stopped with everything it started when this is cancelled.

    Args:
        argv: The command.
        cwd: Its working folder.
        env: Variables on top of those that builds may see.
        told: What it is called in the log.

    Returns:
        Its output and its exit code.
    """
    mark = uuid.uuid4().hex
    kept, last = Kept(1 << 20), [b""]

    def take(data: bytes) -> None:
        kept.add(data)
        last[0] = data

    whole = {**_environment(), **env, "AGENT_ENV_BUILD": mark, "PYTHONUNBUFFERED": "1"}
    log.info("%s", told)
    child = Child(argv, env=whole, cwd=cwd, stdout=take)
    beat = asyncio.create_task(_heartbeat(told, lambda: last[0]))
    try:
        await child.connect()
        code = await child.finish()
        return kept.value(), code
    except BaseException:
        await asyncio.shield(asyncio.to_thread(end_all, f"AGENT_ENV_BUILD={mark}", child.known))
        raise
    finally:
        beat.cancel()
        child.close()


def end_of(output: bytes) -> str:
    """The last lines of an output."""
    return "\n".join(output.decode(errors="replace").rstrip().splitlines()[-OUTPUT_LINES:])


async def _heartbeat(told: str, last: Callable[[], bytes]) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(HEARTBEAT)
        line = (last().decode(errors="replace").strip().splitlines() or [""])[-1]
        log.info("%.60s: still running after %.0f s: %.100s", told, time.monotonic() - began, line)


def _environment() -> dict[str, str]:
    exact = {name for name in _FOR_BUILDS if not name.endswith("*")}
    starts = tuple(name[:-1] for name in _FOR_BUILDS if name.endswith("*"))
    return {name: value for name, value in os.environ.items() if name in exact or name.startswith(starts)}

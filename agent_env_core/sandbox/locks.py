"""Files that the processes of one user lock, so that one of them does a thing and the others wait for it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from agent_env_core.errors import ConfigError

log = logging.getLogger(__name__)

PATIENCE = 15.0
"""Seconds of waiting after which the log says so."""


def lock_path(provider: str, what: str) -> Path:
    """The file to lock for a thing; its folder is there.

    Args:
        provider: Whose thing it is.
        what: Names it among the provider's.

    Raises:
        ConfigError: The folder can't be made.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-env" / provider
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{hashlib.sha256(what.encode()).hexdigest()[:16]}.lock"
        path.touch()
    except OSError as exc:
        raise ConfigError(
            f"{provider}: can't write to {folder} ({exc.strerror}); set XDG_CACHE_HOME to a folder"
        ) from exc
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock; waits for it, so use it in a thread and for short work."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@asynccontextmanager
async def held(path: Path, thing: str) -> AsyncIterator[None]:
    """Holds a lock, asked for with growing pauses, so that waiting can be cancelled.

    Args:
        path: The file.
        thing: What another process may be making meanwhile, for the log.
    """
    pause, waited = 0.01, 0.0
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited < PATIENCE <= waited + pause:
                    log.info("waiting for another process that makes %s", thing)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, 0.5)
        yield

"""Files that processes of one user and machine lock, so that one of them does a thing and the others wait for it."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agent_env_core.errors import ConfigError


def lock_file(what: str) -> IO[str]:
    """The file to lock for a thing, open and not locked yet.

    Raises:
        ConfigError: It can't be made.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-env" / "docker"
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{name}.lock").open("w")
    except OSError as exc:
        raise ConfigError(f"docker: can't write to {folder} ({exc.strerror}); set XDG_CACHE_HOME to a folder") from exc


@contextmanager
def locked(what: str) -> Iterator[None]:
    """Holds the lock of a thing; waits for it, so use it in a thread and for short work."""
    with lock_file(what) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

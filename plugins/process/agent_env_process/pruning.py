"""Keeping the cache small: what nothing uses goes, by hand at once, by itself when it is old or there is too much."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_env_core.sandbox.contract import Unused
from agent_env_process.files import remove_tree
from agent_env_process.images import ENVIRONMENT_FACTS, FACTS, ImageCache

log = logging.getLogger(__name__)

DAY = 86_400.0
GIB = 1 << 30

RECENT = DAY
"""Seconds for which what was used is never removed by itself: another machine that shares the cache may need it."""


@dataclass(frozen=True)
class Entry:
    """An image or an environment in the cache.

    Attributes:
        kind: Which of the two.
        name: Its name.
        place: Its folder.
        size: Bytes on disk.
        used: When it was last used, in seconds since 1970.
        environment: For an image, the name of the environment that it needs.
    """

    kind: Literal["image", "environment"]
    name: str
    place: Path
    size: int
    used: float
    environment: str = ""

    @property
    def id(self) -> str:
        """Names it among all entries."""
        return f"{self.kind}:{self.name}"


def entries(cache: ImageCache) -> list[Entry]:
    """All that is in the cache and finished, what was not used for longest first."""
    found = [
        Entry("image", image.ref, image.folder, image.size, _age(image.folder / FACTS), image.venv.parent.name)
        for image in cache.images()
    ]
    found += [
        Entry("environment", one.key, one.folder, one.size, _age(one.folder / ENVIRONMENT_FACTS))
        for one in cache.all_environments()
    ]
    return sorted(found, key=lambda entry: entry.used)


def unused(cache: ImageCache, in_use: Collection[str]) -> list[Unused]:
    """What could be removed now: images of no running sandbox, and environments of none but such images.

    Args:
        cache: The cache.
        in_use: The images of running sandboxes.
    """
    found = entries(cache)
    needed = {entry.environment for entry in found if entry.name in in_use}
    free = [entry for entry in found if entry.name not in in_use and entry.name not in needed]
    return [Unused(entry.id, f"{entry.kind} {entry.name}", entry.size) for entry in free]


def remove(cache: ImageCache, id: str, in_use: Callable[[], Collection[str]]) -> bool:
    """Removes one entry of :func:`unused`; False where it is gone, in use, or just being made.

    Args:
        cache: The cache.
        id: Which.
        in_use: Asked again, under the entry's lock.
    """
    entry = next((entry for entry in entries(cache) if entry.id == id), None)
    if entry is None:
        return False
    with cache.lock(entry.place).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if all(thing.id != id for thing in unused(cache, in_use())):
            return False
        # The facts go first: from then on nothing finds it, and what a killed removal leaves is a ruin.
        (entry.place / (FACTS if entry.kind == "image" else ENVIRONMENT_FACTS)).unlink(missing_ok=True)
        return remove_tree(entry.place)


def tidy(cache: ImageCache, in_use: Callable[[], Collection[str]], *, days: float, gigabytes: float) -> None:
    """Removes what nothing has used for ``days``, and past ``gigabytes`` what was not used for longest.

    What was used within the last day stays in any case.
    """
    now = time.time()
    found = entries(cache)
    free = {thing.id for thing in unused(cache, in_use())}
    total = sum(entry.size for entry in found)
    for entry in found:
        idle = now - entry.used
        if entry.id not in free or idle < RECENT or (idle < days * DAY and total <= gigabytes * GIB):
            continue
        if remove(cache, entry.id, in_use):
            total -= entry.size
            log.info("removed the %s %s from the cache: not used for %.0f days", entry.kind, entry.name, idle / DAY)


def _age(path: Path) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0

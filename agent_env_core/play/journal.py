"""What one episode leaves on record: where its time went, and its events."""

from __future__ import annotations

import time
from typing import Any

from agent_env_core.errors import Phase
from agent_env_core.play.events import EpisodeEvent, EventKind, emit

TIMED = ("queue", "deploy", "setup", "play", "tool", "verify", "teardown")
"""What :attr:`Journal.timings` holds. Steps that run side by side add up; ``tool`` is a part of ``play``."""


class Journal:
    """Keeps times and tells plugins of events.

    Attributes:
        timings: Seconds spent so far, by the names of :data:`TIMED`.
    """

    def __init__(self, episode_id: str, task_id: str) -> None:
        self.timings: dict[str, float] = dict.fromkeys(TIMED, 0.0)
        self._episode_id = episode_id
        self._task_id = task_id

    def took(self, name: str, seconds: float) -> None:
        """Adds to one of the times."""
        self.timings[name] = self.timings.get(name, 0.0) + seconds

    def tell(self, kind: EventKind, phase: Phase, **data: Any) -> None:
        """Tells plugins what happened just now."""
        emit(EpisodeEvent(self._episode_id, self._task_id, kind, phase, time.time(), data))

"""What happens to episodes, told to plugins: recorders, metrics and tracing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_env_core.errors import Phase, describe
from agent_env_core.plugins import plugins

logger = logging.getLogger(__name__)

EventKind = Literal[
    "started", "step_started", "step_ended", "step_undone", "turn_opened", "turn_ended", "tool_called", "ended",
    "finished",
]  # fmt: skip
"""``started`` comes first, ``step_undone`` before a step runs again, ``ended`` when the scores or the error are known,
``finished`` when teardown is over."""


@dataclass(frozen=True)
class EpisodeEvent:
    """One thing that happened to one episode.

    Attributes:
        episode_id: The episode.
        task_id: The task it plays.
        kind: What happened.
        phase: Where in the episode's life it happened.
        at: Seconds since the epoch.
        data: Details. ``step`` and ``type`` of a step or turn; ``seconds`` on what took time; ``tool`` and ``failure``
            of a call; ``scores``, ``error`` and ``timings`` at the end.
    """

    episode_id: str
    task_id: str
    kind: EventKind
    phase: Phase
    at: float
    data: Mapping[str, Any] = field(default_factory=dict)


_reported: set[str] = set()


def emit(event: EpisodeEvent) -> None:
    """Hands ``event`` to every plugin that listens. One that raises is named in the log, once, and disturbs nobody."""
    for implementation in plugins().hook.agent_env_episode_event.get_hookimpls():
        try:
            implementation.function(*((event,) if "event" in implementation.argnames else ()))
        except Exception as exc:
            if implementation.plugin_name not in _reported:
                _reported.add(implementation.plugin_name)
                logger.warning(
                    "plugin %s failed on an episode event (%s), further failures of it aren't logged: %s",
                    implementation.plugin_name, event.kind, describe(exc),
                )  # fmt: skip

"""The observations and the state of a served bundle, as OpenEnv publishes them in ``/schema``."""

from __future__ import annotations

from openenv.core.env_server.types import Observation, State
from pydantic import Field


class ResetObservation(Observation):  # type: ignore[misc]  # openenv ships no types
    """What a reset answers: the turn's prompt, system prompt and task, in ``metadata``."""


class EpisodeState(State):  # type: ignore[misc]
    """Where a session stands. ``step_count`` counts calls of tools, ``end_turn`` included."""

    task_id: str | None = Field(default=None, description="The task that is played")
    task_name: str | None = Field(default=None, description="Its name in the bundle")
    split: str | None = Field(default=None, description="The split it was asked for by")
    index: int | None = Field(default=None, description="Its place in that split")
    turn: str | None = Field(default=None, description="The step that opened the turn")
    done: bool = Field(default=True, description="Whether the episode has ended")

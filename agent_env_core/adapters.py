"""What a trainer adapter is: the piece that fits an ``AgentEnv`` to one trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Scores = Mapping[str, float]
"""An episode's scores: scoring step id to score."""

Combiner = Callable[[Scores], float | None]
"""Scores to the reward; None leaves the rollout out. A user's ``reward=`` function has the same shape."""


class TrainerAdapter(Protocol):
    """Fits an ``AgentEnv`` to one trainer class."""

    name: str

    def check(self, env: Any, arguments: Mapping[str, Any]) -> list[str]:
        """Looks for settings that can't work, before a model is loaded.

        Args:
            env: The ``AgentEnv``.
            arguments: The trainer's configuration, by field name.

        Returns:
            One line a problem, each with its fix; empty when all is well.
        """

    def arguments(self, env: Any) -> dict[str, Any]:
        """The keyword arguments that connect the trainer to ``env``: dataset and environment factory."""

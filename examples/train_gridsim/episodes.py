"""Watching the episodes that a trainer plays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watched(factory: type, note: Callable[[int, float | None], None]) -> type:
    """An environment class that plays as ``factory`` does, and tells ``note`` every reward it hands to the trainer.

    TRL logs means over rollouts; the share of the days that beat idling needs each day's own reward.

    Args:
        factory: ``env.factory``.
        note: Called with the index of the row in its split and the reward, None where the episode ended unscored.
    """
    base: Callable[..., Any] = factory

    class Watched(base):  # type: ignore[misc,valid-type]
        def reset(self, **row: Any) -> None:
            self._index = int(row["index"])
            super().reset(**row)

        def get_reward(self) -> float | None:
            reward: float | None = super().get_reward()
            note(self._index, reward)
            return reward

    Watched.__name__ = factory.__name__  # TRL names the reward's column after it
    return Watched

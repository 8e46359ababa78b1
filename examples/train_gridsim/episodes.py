"""Watching the episodes that a trainer plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Note = Callable[[int, float | None], None]


class Watch:
    """An environment class that plays as another does, and tells every reward it hands to the trainer.

    TRL logs means over rollouts; the share of the days that beat idling needs each day's own reward.

    Args:
        factory: ``env.factory``.

    Attributes:
        factory: The class to give to the trainer.
    """

    def __init__(self, factory: type) -> None:
        self._note: Note = lambda index, reward: None
        self.factory = self._watched(factory)

    @contextmanager
    def telling(self, note: Note) -> Iterator[None]:
        """For as long as it is open, ``note`` gets the index of each row in its split, and its reward.

        The reward is None where the episode ended unscored.
        """
        before, self._note = self._note, note
        try:
            yield
        finally:
            self._note = before

    def _watched(self, factory: type) -> type:
        base: Callable[..., Any] = factory
        watch = self

        class Watched(base):  # type: ignore[misc,valid-type]
            def reset(self, **row: Any) -> None:
                self._index = int(row["index"])
                super().reset(**row)

            def get_reward(self) -> float | None:
                reward: float | None = super().get_reward()
                watch._note(self._index, reward)
                return reward

        Watched.__name__ = factory.__name__  # TRL names the reward's column after it
        return Watched

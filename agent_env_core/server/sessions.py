"""Which session is whose: our routes, and a socket that ends, find a session's environment by its key."""

from __future__ import annotations

import threading
from typing import Protocol


class Abandonable(Protocol):
    """What a session's episode can be told from outside."""

    def abandon(self, reason: str, episode_id: str | None = None) -> bool:
        """Ends the episode that runs, if it's the one meant; returns whether there was one. Doesn't wait."""


class Sessions:
    """The live sessions of a server, by their keys. A key is made by the client and can't be guessed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[str, Abandonable] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def all(self) -> list[Abandonable]:
        """Every session that has been reset at least once."""
        with self._lock:
            return list(self._by_key.values())

    def bind(self, key: str, session: Abandonable) -> None:
        """Makes ``session`` known by ``key``; a key in use stays with whom it belongs to."""
        with self._lock:
            self._by_key.setdefault(key, session)

    def unbind(self, key: str, session: Abandonable) -> None:
        """The opposite of :meth:`bind`."""
        with self._lock:
            if self._by_key.get(key) is session:
                del self._by_key[key]

    def abandon(self, key: str, reason: str, episode_id: str | None = None) -> bool | None:
        """Ends the episode of the session named ``key``.

        Returns:
            Whether one was running; None when no session has this key.
        """
        with self._lock:
            session = self._by_key.get(key)
        return None if session is None else session.abandon(reason, episode_id)

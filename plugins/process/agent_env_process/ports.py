"""Ports of this machine that a sandbox can count on.

Asking the system for a free port and letting go of it leaves a moment in which somebody else may get it. So the port
is held: a socket that is bound, with ``SO_REUSEADDR``, and never listens. The system gives its number to nobody else,
while a server that sets ``SO_REUSEADDR`` too (asyncio, uvicorn, Node, Go and most others do) can bind it and listen.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping


class HeldPorts:
    """One port of this machine for each port of a sandbox, held until :meth:`release`.

    Args:
        wanted: The sandbox's own port numbers.
    """

    def __init__(self, wanted: Iterable[int]) -> None:
        self._sockets: dict[int, socket.socket] = {}
        try:
            for port in wanted:
                self._sockets[port] = _hold()
        except BaseException:
            self.release()
            raise

    @property
    def numbers(self) -> Mapping[int, int]:
        """The sandbox's port to the machine's."""
        return {port: held.getsockname()[1] for port, held in self._sockets.items()}

    def release(self) -> None:
        """Gives the ports back. Idempotent."""
        for held in self._sockets.values():
            held.close()


def _hold() -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("0.0.0.0", 0))  # the number on every address, so that no connection of this machine uses it either
    except BaseException:
        held.close()
        raise
    return held

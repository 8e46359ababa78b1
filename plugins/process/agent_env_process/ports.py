"""Ports of this machine that a sandbox can count on.

Asking the system for a free port and letting go of it leaves a moment in which somebody else may get it. So the port
is held: a socket that is bound and never listens. It is bound for itself alone, so no other holder gets the number;
``SO_REUSEADDR`` is set only then, after which a server that sets it too (asyncio, uvicorn, Node, Go and most others
do) can bind the port and listen.

The system gives a held port to nobody who asks for any. Others pick their numbers from the same range by themselves,
though, and set ``SO_REUSEADDR``: Docker publishes containers' ports like that, and would get a held one before the
sandbox listens. So the ports are taken from outside that range.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

SYSTEM_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
FIRST, LAST = 10_000, 65_535
"""Below are the well-known services."""
ENOUGH = 4_000
"""A range of fewer ports isn't worth drawing from."""
TRIES = 200


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
    own = _own_range()
    numbers: Sequence[int] = random.sample(own, min(TRIES, len(own))) if own else ()
    for number in (*numbers, 0):  # 0: any the system finds, where we know no better
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("0.0.0.0", number))  # on every address, so that no connection of this machine uses it either
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        except BaseException as exc:
            held.close()
            if number and isinstance(exc, OSError) and exc.errno == errno.EADDRINUSE:
                continue
            raise
        return held
    raise AssertionError("the last number is 0, which either binds or raises")


@cache
def _own_range() -> range:
    """The ports that the system gives to nobody by itself; empty where that isn't known."""
    try:
        first, last = (int(word) for word in SYSTEM_RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return range(0)
    widest = max(range(FIRST, first), range(last + 1, LAST + 1), key=len)
    return widest if len(widest) >= ENOUGH else range(0)

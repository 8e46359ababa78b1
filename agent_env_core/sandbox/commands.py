"""What providers share that run commands in machines they reach only through an engine or a service."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

TOKEN_VARIABLE = "AGENT_ENV_EXEC"  # noqa: S105 - a variable's name
"""Holds a value of its own in the environment of each command, by which all that it started is found."""

KILL_TREE = r"""
token=$1 session=$2 looks=0
while [ "$looks" -lt 500 ]; do
  looks=$((looks + 1)) found=
  for file in $(grep -lsF -e "$token" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${file#/proc/}; pid=${pid%/environ}
    [ "$pid" = $$ ] || found="$found $pid"
  done
  for file in /proc/[0-9]*/stat; do
    { read -r line <"$file"; } 2>/dev/null || continue
    pid=${line%% *}; set -- ${line##*) }
    [ "$1" != Z ] && [ "$4" = "$session" ] && found="$found $pid"
  done
  [ -n "$found" ] || exit 0
  kill -9 $found 2>/dev/null
done
exit 1
"""
"""A shell script that kills a command's whole tree: ``sh -c KILL_TREE sh TOKEN SESSION``.

It takes who has the token in the environment, or is of the session (any word where its number isn't known), and looks
until nobody is left; a zombie is dead. It exits with 1 where new ones appear faster than they die.
"""


class Kept:
    """The first bytes of one of a command's outputs, and a note where that isn't all.

    Args:
        limit: How many bytes are kept.

    Attributes:
        dropped: How many more there were.
    """

    def __init__(self, limit: int) -> None:
        self._data = bytearray()
        self._limit = limit
        self.dropped = 0

    def add(self, data: bytes | bytearray) -> None:
        """Keeps what fits."""
        room = self._limit - len(self._data)
        self._data += data[:room]
        self.dropped += max(0, len(data) - room)

    def take_number(self) -> int | None:
        """Takes a first line away that is a number: a shell's process, said before it becomes the command."""
        line, newline, rest = self._data.partition(b"\n")
        if not newline or not line.isdigit():
            return None
        self._data = rest
        return int(line)

    def value(self) -> bytes:
        """What was kept."""
        note = f"\n[agent-env: {self.dropped} more bytes were dropped]\n" if self.dropped else ""
        return bytes(self._data) + note.encode()


_endings: set[asyncio.Task[None]] = set()  # a task nobody holds may be collected before its end


async def finish(ending: Coroutine[Any, Any, None]) -> None:
    """Waits for an ending, which goes on where the waiting is cancelled."""
    task = asyncio.create_task(ending)
    _endings.add(task)
    task.add_done_callback(_ended)
    await asyncio.shield(task)


def _ended(task: asyncio.Task[None]) -> None:
    _endings.discard(task)
    if not task.cancelled():
        task.exception()  # whoever still waits has it

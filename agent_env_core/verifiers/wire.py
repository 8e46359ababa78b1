"""Frames between the server and its verifier process: a length of four bytes, then JSON."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct("!I")
MAX_FRAME = 8 * 1024 * 1024
"""Bytes of one frame at most: a verifier that returns more is refused."""


def pack(message: Any) -> bytes:
    """A message as a frame."""
    body = json.dumps(message).encode()
    return HEADER.pack(len(body)) + body


def unpack(read: Callable[[int], bytes]) -> Any:
    """The next message of a blocking stream; None at its end.

    Args:
        read: Returns up to that many bytes, and none at the end.
    """
    header = _exactly(read, HEADER.size)
    body = _exactly(read, HEADER.unpack(header)[0]) if header else b""
    return json.loads(body) if body else None


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size:
        part = read(size)
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)

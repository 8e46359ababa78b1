"""Entity ids: how they come from a folder's place, and which characters they may hold."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from agent_env_core.bundle.names import nfc

PREFIX = "@local/"
MAX_BYTES = 4096
#: Ids derived from an authored one (``<id>__env_image`` and the like) must fit as well.
MAX_AUTHORED_BYTES = MAX_BYTES - 25
MARKS = frozenset(" ._-~/@()+,&")


def id_root(root: Path) -> str:
    """What the ids of a bundle's entities begin with.

    Args:
        root: The bundle's folder, absolute and free of symlinks.

    Returns:
        ``@local/~/<path>`` for a folder under the user's home, ``@local/<path>`` elsewhere.
    """
    home = Path(os.path.realpath(os.path.expanduser("~")))
    if home != Path(home.anchor) and root.is_relative_to(home):
        return nfc(PREFIX + "/".join(("~", *root.relative_to(home).parts)))
    return nfc(PREFIX + "/".join(root.parts[1:]))


def stray_characters(text: str) -> str:
    """The characters of ``text`` that no id may hold, each once."""
    if re.fullmatch(r"[A-Za-z0-9 ._\-~/@()+,&]*", text):
        return ""
    stray = (char for char in text if char not in MARKS and unicodedata.category(char)[0] not in "LMN")
    return "".join(dict.fromkeys(stray))


def id_fault(entity_id: str, max_bytes: int = MAX_BYTES) -> str:
    """Why ``entity_id`` can't be an id, or an empty text.

    The id is one that starts with ``@local/``; the rest is segments divided by slashes.
    """
    if not entity_id.startswith(PREFIX):
        return f"must start with {PREFIX}"
    body = entity_id[len(PREFIX) :]
    if stray := stray_characters(body):
        shown = " ".join(char if char.isprintable() else f"U+{ord(char):04X}" for char in stray[:8])
        return f"has characters an id can't hold: {shown}"
    for segment in body.split("/"):
        if segment in ("", ".", ".."):
            return f"has a part {segment!r} between slashes"
        if segment != segment.strip(" "):
            return f"has a part that begins or ends with a space: {segment!r}"
    if nfc(entity_id) != entity_id:
        return "isn't in Unicode's composed form (NFC)"
    size = len(entity_id.encode())
    return f"is {size} bytes long, and {max_bytes} is the limit" if size > max_bytes else ""


def name_fault(name: str) -> str:
    """Why a folder or file name can't be the last part of an id, or an empty text."""
    return id_fault(PREFIX + nfc(name))

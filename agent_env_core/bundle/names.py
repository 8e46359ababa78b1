"""Names on disk: what counts as content, what is a misspelling by case, and how a name is shown in a message."""

from __future__ import annotations

import difflib
import json
import unicodedata
from collections.abc import Iterable

LEAVINGS = frozenset({".ds_store", "thumbs.db", "desktop.ini", "__pycache__"})


def is_leaving(name: str) -> bool:
    """Whether an operating system or Python left it behind; such entries are never content."""
    return name.casefold() in LEAVINGS


def nfc(text: str) -> str:
    """The composed form of a text, so that names from different file systems are equal."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def fold(text: str) -> str:
    """A key that is equal for names which some file system can't hold side by side."""
    return text.casefold() if text.isascii() else nfc(nfc(text).casefold())


def is_text(name: str) -> bool:
    """Whether the name is proper Unicode; a file name that is not UTF-8 arrives with lone surrogates."""
    return name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)


def show(text: str) -> str:
    """The text as a message may print it: on one line, with what can't be printed escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def quote(value: object, limit: int = 80) -> str:
    """A value for a message, printable and cut to ``limit`` characters: texts in quotes, the rest as JSON has it."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):  # nested too deeply, or a whole number with too many digits
        text = f"<{type(value).__name__}>"
    text = show(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def nearest(value: str, options: Iterable[str]) -> str:
    """The option a misspelt value most likely meant, or an empty text."""
    close = difflib.get_close_matches(value[:200], list(options), n=1, cutoff=0.75)
    return close[0] if close else ""


def listed(names: Iterable[str], none: str = "none", limit: int = 12) -> str:
    """Names in a row for a message, at most ``limit`` of them."""
    every = sorted(names)
    shown = ", ".join(show(name) for name in every[:limit])
    return (shown + f", … ({len(every)} in all)" if len(every) > limit else shown) or none

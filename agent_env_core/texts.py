"""Texts that are longer than somebody wants them."""

from __future__ import annotations


def shortened(text: str, limit: int | None) -> str:
    """A text of which ``limit`` characters are left, of its beginning and its end, with a note of what is left out.

    Without a limit it is the text.
    """
    if limit is None or len(text) <= limit:
        return text
    end = limit // 2
    return f"{text[: limit - end]}\n[{len(text) - limit} characters left out]\n{text[len(text) - end :]}"

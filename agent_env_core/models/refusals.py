"""What a server's refusal means: whether to ask again, and what to tell the user."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from agent_env_core.errors import ContextTooLong, ModelError

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Status codes that may go away by themselves."""
MAX_TOLD = 400
"""Characters of a server's own words that a message repeats."""

_TOO_LONG = re.compile(
    r"context[ _](length|window|size)|maximum (model|input|sequence) length|max_model_len|too many tokens|"
    r"(prompt|input) is too long",
    re.IGNORECASE,
)


def said(body: bytes) -> tuple[str, str]:
    """The words and the code of an error, in whichever of the usual forms the server sends it."""
    try:
        found = json.loads(body)
    except ValueError:
        return _short(body.decode(errors="replace")), ""
    error: Any = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, Mapping):
        words = error.get("message") or error.get("detail") or error.get("msg") or error
        return _short(str(words)), str(error.get("code") or error.get("type") or "")
    return _short(str(error)), ""


def refusal(status: int, words: str, code: str) -> ModelError:
    """The error for an HTTP status; ``words`` and ``code`` are the server's."""
    told = f"HTTP {status}" + (f": {words}" if words else "")
    if code == "context_length_exceeded" or (status in (400, 413, 422) and _TOO_LONG.search(words)):
        return ContextTooLong(f"the conversation is longer than the model can read ({told})")
    if code == "insufficient_quota":
        return ModelError(f"the account's quota is used up ({told})")
    return ModelError(told, retryable=status in RETRIED)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: ``Retry-After`` in seconds or as a date (RFC 9110, 10.2.3)."""
    given = headers.get("retry-after", "").strip()
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(given).timestamp() - time.time()
        except (TypeError, ValueError, IndexError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TOLD else line[: MAX_TOLD - 1] + "…"

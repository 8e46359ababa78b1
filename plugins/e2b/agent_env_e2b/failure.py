"""From what E2B's SDK raises to the six sandbox errors. This is the only place that does it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, SandboxError, Unavailable, Unsupported

KEY = "E2B_API_KEY"
KEYS_PAGE = "https://e2b.dev/dashboard?tab=keys"

FILE_ERRORS = (FileNotFoundError, IsADirectoryError, PermissionError)

PAUSE = 1.0
"""Seconds to wait after a rate limit. E2B's own number isn't handed on by its SDK."""

_STATUS = re.compile(r"^(\d{3})\b")


def words(exc: BaseException) -> str:
    """What was said, in one line."""
    return " ".join(str(exc).split()) or type(exc).__name__


def status_of(exc: BaseException) -> int | None:
    """The HTTP status behind an exception: as an attribute, or at the beginning of its text."""
    status = getattr(exc, "status_code", None)
    if isinstance(status, int):
        return status
    found = _STATUS.match(str(exc))
    return int(found[1]) if found else None


def translate(exc: BaseException, doing: str, *, building: bool = False, pause: float = PAUSE) -> Exception:
    """The error to raise for ``exc``, caught while ``doing`` something (a phrase such as ``creating a sandbox``).

    Sandbox errors and the file errors of the contract pass through. What isn't recognised is ``Unavailable``: it may or
    may not have taken effect.

    Args:
        exc: What was caught.
        doing: For the message.
        building: Whether a template was being built, so that a refusal is the image's fault.
        pause: Seconds to wait where there is no room.
    """
    if isinstance(exc, SandboxError) or type(exc) in FILE_ERRORS:
        return exc  # type: ignore[return-value]  # both are Exceptions
    import e2b

    text = f"e2b: {doing} failed: {words(exc)}"
    if isinstance(exc, e2b.AuthenticationException):
        return ConfigError(f"{text}; make a key at {KEYS_PAGE}, then: export {KEY}=e2b_…")
    if isinstance(exc, e2b.RateLimitException | e2b.ServiceBusyException):
        return Busy(text, pause)
    if isinstance(exc, e2b.SandboxNotFoundException | e2b.SandboxNotRunningException):
        return Gone(text)
    status = status_of(exc)
    if isinstance(exc, e2b.NotEnoughSpaceException) or status == 507:
        return Unavailable(f"{text}; the sandbox's disk is full")
    if status == 403:
        return ConfigError(f"{text}; the key's team may not do that")
    if isinstance(exc, e2b.BuildException | e2b.TemplateException) and (status is None or status < 500):
        return ImageError(text)
    if status == 404:
        return ImageError(f"{text}; prepare the image again")
    if status == 400 or isinstance(exc, e2b.InvalidArgumentException):
        return ImageError(text) if building else Unsupported(text)
    return Unavailable(text)


@contextmanager
def translated(doing: str, *, building: bool = False, pause: float = PAUSE) -> Iterator[None]:
    """Raises what :func:`translate` makes of any exception of the block."""
    try:
        yield
    except Exception as exc:
        error = translate(exc, doing, building=building, pause=pause)
        if error is exc:
            raise
        raise error from exc


def obituary(sandbox_id: str, how: str) -> Gone:
    """That a sandbox has ended, and how."""
    return Gone(f"e2b: the sandbox {sandbox_id} has ended: {how}")

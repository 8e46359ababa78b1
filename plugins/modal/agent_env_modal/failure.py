"""From what Modal's SDK raises to the six sandbox errors. This is the only place that does it.

The SDK repeats a call that failed on its way by itself, with a key that keeps the service from doing it twice; what
arrives here has been repeated. A ``ConflictError`` is an ``InvalidError`` too, so it is looked at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent_env_core.errors import Busy, ConfigError, ImageError, SandboxError, Unavailable, Unsupported, describe

LOG_IN = "run `modal token new` (or `modal setup`), or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
RETRY_AFTER = 3.0


def words(exc: BaseException) -> str:
    """What was said, in one line."""
    return " ".join(str(exc).split()) or type(exc).__name__


def translate(exc: Exception, doing: str, retry_after: float = RETRY_AFTER) -> Exception:
    """The error to raise for ``exc``, caught while ``doing`` something; those of the contract pass through.

    Whatever isn't recognised is ``Unavailable``: the service may or may not have done what it was asked.

    Args:
        exc: What was raised.
        doing: A phrase such as ``creating a sandbox``.
        retry_after: Seconds to wait where the service is at a limit and doesn't say for how long.
    """
    if isinstance(exc, SandboxError):
        return exc
    from modal import exception as sdk

    text = f"modal: {doing} failed: {words(exc)}"
    match exc:
        case sdk.SandboxFilesystemNotFoundError():
            return FileNotFoundError(words(exc))
        case sdk.SandboxFilesystemIsADirectoryError():
            return IsADirectoryError(words(exc))
        case sdk.SandboxFilesystemNotADirectoryError():
            return NotADirectoryError(words(exc))
        case sdk.SandboxFilesystemPermissionError():
            return PermissionError(words(exc))
        case sdk.AuthError():
            return ConfigError(f"{text}; {LOG_IN}")
        case sdk.PermissionDeniedError():
            return ConfigError(f"{text}; the token's workspace must allow it: `modal profile current` names it")
        case sdk.VersionError():
            return ConfigError(f"{text}; update the SDK: pip install -U 'modal>=1.6,<2'")
        case sdk.ResourceExhaustedError():
            return Busy(text, _asked_to_wait(exc) or retry_after)
        case sdk.ImageBuildError() if "external shut-down" in str(exc):
            return Unavailable(text)
        case sdk.ImageBuildError():
            return ImageError(text)
        case sdk.ConflictError():
            return Unavailable(text)
        case sdk.InvalidError() | sdk.RequestSizeError() | sdk.SandboxFilesystemFileTooLargeError():
            return Unsupported(text)
        case sdk.Error():
            return Unavailable(text)
    return Unavailable(f"modal: {doing} failed: {describe(exc)}")


def _asked_to_wait(exc: Exception) -> float | None:
    """How long the service says to wait; it's in the answer's details, which the SDK keeps and shows nobody."""
    for detail in getattr(exc, "_grpc_details", None) or ():
        if seconds := getattr(detail, "retry_after_secs", None):
            return float(seconds)
    return None


@contextmanager
def translated(doing: str, retry_after: float = RETRY_AFTER) -> Iterator[None]:
    """Raises what :func:`translate` makes of any exception of the block."""
    try:
        yield
    except Exception as exc:
        error = translate(exc, doing, retry_after)
        if error is exc:
            raise
        raise error from exc

"""What an error of this machine means for the one who asked."""

from __future__ import annotations

import errno

from agent_env_core.errors import Busy, ConfigError, SandboxError, Unavailable

NO_ROOM = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Something of the machine's is used up; it may be free again soon. A full disk isn't, before somebody tidies up."""

_NO_ANSWER = NO_ROOM | {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT}


def creation_error(exc: OSError, what: str) -> SandboxError:
    """The error of a create that left nothing.

    Args:
        exc: What happened.
        what: What can't be done, where, and what to do about it.
    """
    if exc.errno in NO_ROOM:
        return Busy(f"process: {what}", retry_after=2.0)
    return ConfigError(f"process: {what}")


def reading_error(exc: OSError, what: str) -> SandboxError:
    """The error of a look at what there is. That it failed says nothing about what there is."""
    return Unavailable(f"process: {what}") if exc.errno in _NO_ANSWER else ConfigError(f"process: {what}")

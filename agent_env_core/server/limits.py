"""How many sessions a server allows, and who decides. Light: a trainer imports it too."""

from __future__ import annotations

import os

from agent_env_core.errors import CapacityError

VARIABLE = "MAX_CONCURRENT_ENVS"
WARM_VARIABLE = "AGENT_ENV_WARM"


class _Default(int):
    """A number that still knows it's the default: 8 written by a user is a plain ``int``."""


DEFAULT_SESSIONS: int = _Default(8)
"""What ``max_concurrent_envs=`` is when it isn't given."""


def session_limit(given: int = DEFAULT_SESSIONS) -> int:
    """The number of sessions to allow: what the caller gave, else ``MAX_CONCURRENT_ENVS``, else 8.

    Raises:
        ValueError: It's no whole number above 0.
    """
    source, value = "max_concurrent_envs", str(given)
    if isinstance(given, _Default) and VARIABLE in os.environ:
        source, value = VARIABLE, os.environ[VARIABLE]
    try:
        limit = int(value)
    except ValueError:
        limit = 0
    if limit < 1 or isinstance(given, bool):
        raise ValueError(f"{source}={value} must be a whole number of sessions, at least 1")
    return limit


OWN_FILES, FILES_EACH = 128, 8
"""Open files that a server has for itself, and at most for a session, or for a deployment made ahead: while its env
starts, when most are open."""


def allow_files(sessions: int, warm: int | None = None) -> None:
    """Raises this process's limit of open files to what so many sessions need, as far as that is its to raise.

    Args:
        sessions: How many there may be.
        warm: How many deployments are made ahead. None, where nobody says, makes no more than there are sessions: for
            these the limit is raised as far as it may be, and no more is needed.

    Raises:
        CapacityError: It is not; the message says how to raise it.
    """
    import resource  # here: a trainer imports this module on any system

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + FILES_EACH * (sessions + (warm or 0))
    wanted = needed if warm is not None else needed + FILES_EACH * sessions
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        fits = (hard - OWN_FILES) // FILES_EACH - (warm or 0)
        ahead = f" and {warm} deployments made ahead" if warm else ""
        fewer = f", or allow {fits} sessions at most (max_concurrent_envs={fits})" if fits > 0 else ""
        raise CapacityError(
            f"{sessions} sessions{ahead} need up to {needed} open files, and this process may have {hard}: "
            f"say `ulimit -n {needed}` before you start it{fewer}"
        )
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def warm_limit(given: int | None = None) -> int | None:
    """How many deployments to make ahead: what the caller gave, else ``AGENT_ENV_WARM``, else None.

    Raises:
        ValueError: It's no whole number.
    """
    source, value = "warm", given
    if given is None and (text := os.environ.get(WARM_VARIABLE, "").strip()):
        source, value = WARM_VARIABLE, int(text) if text.isdecimal() else -1
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        shown = os.environ[WARM_VARIABLE] if source == WARM_VARIABLE else given
        raise ValueError(f"{source}={shown} must be a whole number of deployments; 0 makes none ahead")
    return value

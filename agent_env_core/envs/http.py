"""The HTTP client that everything of a runner shares."""

from __future__ import annotations

import httpx


def open_client(*, remote: bool = False) -> httpx.AsyncClient:
    """Makes the client for all envs of one event loop; the caller closes it.

    There are no timeouts in it: each call has a deadline of its own. An idle connection is dropped after two seconds,
    before a server's usual five, since a server that hangs up just as a tool is called would cost an episode.

    Args:
        remote: Whether sandboxes run on other machines; only then do the proxy settings of this machine apply.
    """
    return httpx.AsyncClient(
        timeout=None,  # noqa: S113 - see above
        follow_redirects=True,
        trust_env=remote,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=2.0),
    )

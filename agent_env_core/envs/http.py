"""The HTTP clients of deployed envs: one each, over one TLS context."""

from __future__ import annotations

import httpx


class HttpClients:
    """Makes a client for each deployment.

    A TLS context costs 18 ms of CPU, so all clients share one. A connection pool looks through all its connections at
    every request, so they share none.

    There are no timeouts in a client: each call has a deadline of its own. An idle connection is dropped after two
    seconds, before a server's usual five, since a server that hangs up just as a tool is called would cost an episode.

    Args:
        remote: Whether sandboxes run on other machines; only then do the proxy settings of this machine apply.
    """

    def __init__(self, *, remote: bool = False) -> None:
        self._remote = remote
        self._tls = httpx.create_ssl_context()

    def open(self) -> httpx.AsyncClient:
        """A new client; its user closes it."""
        return httpx.AsyncClient(
            timeout=None,  # noqa: S113 - see above
            follow_redirects=True,
            verify=self._tls,
            trust_env=self._remote,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
        )

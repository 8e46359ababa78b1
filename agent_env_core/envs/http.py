"""The HTTP clients of deployed envs: one each, over one TLS context."""

from __future__ import annotations

import httpx


class HttpClients:
    """Makes a client for each deployment.

    A TLS context costs 18 ms of CPU, so all clients share one. A connection pool looks through all its connections at
    every request, so they share none.

    There are no timeouts in a client: each call has a deadline of its own. An idle connection is dropped after two
    seconds, before a server's usual five, since a server that hangs up just as a tool is called would cost an episode.

    A redirect is followed on the env's own address alone. What runs in a sandbox could otherwise send requests of this
    process, and the headers that a provider wants on them, to any address that this machine reaches.

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
            event_hooks={"response": [_refuse_strange_redirects]},
            verify=self._tls,
            trust_env=self._remote,
            limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
        )


async def _refuse_strange_redirects(response: httpx.Response) -> None:
    if not response.has_redirect_location:
        return
    here, there = response.url, response.url.join(response.headers["Location"])
    if (here.host, here.port) != (there.host, there.port):  # a default port is None, so http may become https
        raise httpx.RemoteProtocolError(f"it redirects to another address, {there.scheme}://{there.netloc.decode()}")

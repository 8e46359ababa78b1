"""The HTTP clients of deployed envs: one each, over one TLS context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

MAX_BODY = 8 * 1024 * 1024
"""Bytes of an answer that are read at most, where its caller sets no other bound."""


class TooLarge(ValueError):
    """An answer that goes past its bound."""


@dataclass(frozen=True)
class Answer:
    """What a server answered, read within a bound: its status, its body, and the body's content type."""

    status: int
    body: bytes
    kind: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is a success."""
        return 200 <= self.status < 300

    @property
    def said(self) -> str:
        """The start of the body on one line, for a message."""
        return " ".join(self.body[:2000].decode(errors="replace").split())

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: It is none.
        """
        try:
            return json.loads(self.body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


async def fetch(
    client: httpx.AsyncClient, verb: str, url: str, headers: Mapping[str, str], *, limit: int = MAX_BODY, **sent: Any
) -> Answer:
    """Makes one request. Its deadline is the caller's, by ``asyncio.timeout``: a client has none of its own.

    Args:
        client: The env's client.
        verb: The HTTP method.
        url: Where to.
        headers: What every request to the env carries.
        limit: Bytes of the body that are read at most.
        sent: ``json=`` or ``params=``, as httpx has them.

    Raises:
        TooLarge: The body is larger than ``limit``.
        httpx.HTTPError: There was no answer.
    """
    body = bytearray()
    async with client.stream(verb, url, headers=dict(headers), **sent) as response:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > limit:
                raise TooLarge(f"it is larger than {limit >> 20} MiB")
    return Answer(response.status_code, bytes(body), response.headers.get("Content-Type", ""))


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

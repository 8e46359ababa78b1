"""Where an env server is, and what a request to it carries."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

TOKEN_VARIABLE = "AGENT_ENV_TOKEN"  # noqa: S105 - the name of a variable, not a token
PREFIX = "/agent-env/v1"
"""Where a server keeps the routes of ours; OpenEnv's own stand beside it."""


@dataclass(frozen=True)
class Address:
    """A server's address.

    Attributes:
        url: Its base URL, ``http://`` or ``https://``, without a trailing slash.
        token: The bearer token it asks for, if any.
        limit: Sessions it allows at once, where that is known.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    limit: int | None = None

    @classmethod
    def of(cls, url: str, token: str | None = None, limit: int | None = None) -> Address:
        """Reads a URL that a user wrote. Without ``token``, the environment is asked for one.

        Raises:
            ValueError: It is no URL of a server, or the token can't be sent.
        """
        parts = urlsplit(url.strip())
        scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
        if scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is no address of an env server: write it as http://host:port")
        if parts.username or parts.password:
            raise ValueError(f"an address holds no password: pass {parts.hostname}'s token as token=")
        clean = f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        token = token or os.environ.get(_variable_of(clean)) or os.environ.get(TOKEN_VARIABLE) or None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise ValueError("a token has printable ASCII characters only, since a header carries it")
        return cls(clean, token, limit)

    @property
    def socket_url(self) -> str:
        """The URL of the server's WebSocket."""
        return "ws" + self.url.removeprefix("http") + "/ws"

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def loopback(self) -> bool:
        """Whether the server is on this machine's loopback, where no proxy stands between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def hand_down_token(address: Address) -> None:
    """Leaves an address's token to the processes this one will spawn.

    A trainer's worker process gets the environment class pickled, and a pickle holds no secret. So the token goes the
    way secrets go between processes: an environment variable, named after the URL so that two servers don't mix.
    """
    if address.token:
        os.environ[_variable_of(address.url)] = address.token


def _variable_of(url: str) -> str:
    return f"{TOKEN_VARIABLE}_{hashlib.sha256(url.encode()).hexdigest()[:12].upper()}"

"""Who may talk to the server: holders of the token, where there is one, and no web page of another origin."""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_VARIABLE = "AGENT_ENV_TOKEN"  # noqa: S105 - the name of a variable, not a token
OPEN_PATHS = frozenset({"/health"})
"""What a load balancer asks; it tells nothing and starts nothing."""


class Guard:
    """ASGI middleware that refuses strangers before anything is read from them.

    A browser sends ``Origin`` with every WebSocket it opens, so a page that a user happens to look at can't drive a
    server on that user's machine.

    Args:
        app: What is guarded.
        token: The bearer token to ask for; None lets everybody in.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 401 or 403; a WebSocket is refused before it's accepted."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if _foreign(headers):
            await _refuse(scope, send, 403, "requests of other origins are refused")
        elif self._stranger(headers) and scope["path"] not in OPEN_PATHS:
            await _refuse(scope, send, 401, f"this server asks for a bearer token: the one in its {TOKEN_VARIABLE}")
        else:
            await self._app(scope, receive, send)

    def _stranger(self, headers: dict[bytes, bytes]) -> bool:
        given = headers.get(b"authorization", b"")
        return self._expected is not None and not hmac.compare_digest(given, self._expected)


def _foreign(headers: dict[bytes, bytes]) -> bool:
    origin = headers.get(b"origin")
    return origin is not None and urlsplit(origin.decode("latin-1")).netloc != headers.get(b"host", b"").decode(
        "latin-1"
    )


async def _refuse(scope: Scope, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": why})  # before accept: HTTP 403
        return
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": why}).encode()})

"""Serves an ASGI application on a loopback port of this process, for fakes that must answer over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any


class Served:
    """A running application; made by :meth:`start`.

    Attributes:
        url: Where it answers.
    """

    def __init__(self, server: Any, task: asyncio.Task[None], url: str, requests: set[asyncio.Task[Any]]) -> None:
        self._server, self._task, self.url, self._requests = server, task, url, requests

    @classmethod
    async def start(cls, app: Any) -> Served:
        """Serves ``app`` (needs ``uvicorn``) until :meth:`close`; it listens when this returns."""
        import uvicorn

        class Quiet(uvicorn.Server):
            """A server that leaves the process's signals alone."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        requests: set[asyncio.Task[Any]] = set()

        async def tracked(scope: Any, receive: Any, send: Any) -> None:
            request = asyncio.current_task()
            assert request is not None
            requests.add(request)
            try:
                await app(scope, receive, send)
            finally:
                requests.discard(request)

        listening = socket.create_server(("127.0.0.1", 0))  # it stays open: the server takes it over
        server = Quiet(uvicorn.Config(tracked, log_config=None, log_level="warning", timeout_graceful_shutdown=1))
        task = asyncio.create_task(server.serve([listening]))
        return cls(server, task, f"http://127.0.0.1:{listening.getsockname()[1]}", requests)

    async def close(self) -> None:
        """Cuts every connection, as the end of a process does, and stops what was under way. Idempotent."""
        self._server.should_exit = True
        self._server.force_exit = True
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(self._task, return_exceptions=True)
        for request in list(self._requests):  # none of them can answer any more
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

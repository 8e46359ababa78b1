"""Serves an ASGI application on a loopback port of this process, for fakes that must answer over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

ACCEPTING = 4
"""Turns of the loop in which a connection that was being accepted when the server closed has shown itself."""


class Served:
    """A running application; made by :meth:`start`.

    Attributes:
        url: Where it answers.
    """

    def __init__(self, server: Any, task: asyncio.Task[None], url: str) -> None:
        self._server, self._task, self.url = server, task, url
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, app: Any) -> Served:
        """Serves ``app`` (needs ``uvicorn``) until :meth:`close`; it listens when this returns."""
        import uvicorn

        class Quiet(uvicorn.Server):
            """A server that leaves the process's signals alone."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        listening = socket.create_server(("127.0.0.1", 0))  # it stays open: the server takes it over
        config = uvicorn.Config(
            app, log_config=None, log_level="warning", timeout_graceful_shutdown=1,
            timeout_keep_alive=3600,  # a loop that stalls for seconds hangs up on nobody who is about to ask
        )  # fmt: skip
        server = Quiet(config)

        def let_go(_: object) -> None:
            for each in getattr(server, "servers", ()):  # none before its startup
                each.close()
            listening.close()

        task = asyncio.create_task(server.serve([listening]))
        task.add_done_callback(let_go)  # a server that is cancelled closes nothing by itself
        return cls(server, task, f"http://127.0.0.1:{listening.getsockname()[1]}")

    async def close(self) -> None:
        """Cuts every connection, as the end of a process does, and stops what was under way.

        Idempotent, and goes on behind where a caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        state = self._server.server_state
        self._cut(state)
        await asyncio.gather(self._task, return_exceptions=True)
        for _ in range(ACCEPTING):
            await asyncio.sleep(0)
            while state.connections or state.tasks:
                self._cut(state)
                for request in (requests := list(state.tasks)):  # none of them can answer any more
                    request.cancel()
                await asyncio.gather(*requests, return_exceptions=True)
                await asyncio.sleep(0)

    @staticmethod
    def _cut(state: Any) -> None:
        for connection in list(state.connections):
            connection.transport.abort()

"""A double of E2B for the real SDK: the REST API, template builds and envd, over real sockets; boxes are its machines.

:class:`E2BDouble` runs it in a thread. As a program it runs by itself, prints the variables that lead the SDK to it,
and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b_control import Control, refused
from e2b_envd import Files, current, forward, http, processes, user, user_of
from e2b_world import API_KEY, Fault, World
from starlette.responses import JSONResponse, Response

from agent_env_core.testing.asgi import Served

T = TypeVar("T")

ENVD_PORT = 49983
files = FilesystemASGIApplication(Files())


def settings(url: str) -> dict[str, str]:
    """The environment that leads the SDK to a double."""
    return {"E2B_API_KEY": API_KEY, "E2B_API_URL": url, "E2B_SANDBOX_URL": url}


class Cut(Exception):
    """A connection is to be cut."""


class Double:
    """The application: tells calls of the control plane from those to a sandbox, and brings faults about."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._control = Control(world)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return None
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        call = f"{scope['method']} {scope['path']}"
        if "e2b-sandbox-port" in headers and headers["e2b-sandbox-port"] != str(ENVD_PORT):
            call = f"PORT {headers['e2b-sandbox-port']} {scope['path']}"
        self.world.calls.append(call)
        fault = next((each for each in self.world.faults if call.startswith(each.call) and each.times > 0), None)
        if fault is None:
            return await self._answer(scope, receive, send, headers)
        fault.times -= 1
        await asyncio.sleep(fault.seconds)
        return await self._failing(fault, scope, receive, send, headers)

    async def _failing(self, fault: Fault, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        if fault.events is not None:
            return await self._answer(scope, receive, _counted(send, fault.events), headers)
        if fault.after:
            await self._answer(scope, receive, _swallow, headers)
        if fault.status is None:
            return await self._answer(scope, receive, send, headers)
        if fault.status == 0:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            raise Cut
        return await refused(fault.status, fault.message, **fault.headers)(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        app: Any
        if "e2b-sandbox-id" in headers:
            return await self._sandbox(scope, receive, send, headers)
        if not scope["path"].startswith("/upload/") and headers.get("x-api-key") != API_KEY:
            app = refused(401, "invalid API key")
        elif any(route.matches(scope)[0].value == 2 for route in self._control.app.routes):
            app = self._control.app
        else:
            app = self._unknown(f"{scope['method']} {scope['path']}")
        return await app(scope, receive, send)

    async def _sandbox(self, scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        sandbox = self.world.sandboxes.get(headers["e2b-sandbox-id"])
        port = int(headers.get("e2b-sandbox-port", ENVD_PORT))
        path: str = scope["path"]
        app: Any
        if sandbox is None or not sandbox.alive:
            gone = {"sandboxId": headers["e2b-sandbox-id"], "message": "The sandbox was not found", "code": 502}
            app = JSONResponse(gone, 502)
        elif port != ENVD_PORT:
            if not sandbox.open_ports and headers.get("e2b-traffic-access-token") != sandbox.traffic:
                app = refused(403, "traffic access token is missing or wrong")
            else:
                try:
                    return await forward(scope, receive, send, sandbox, port)
                except OSError:
                    app = JSONResponse({"message": "The sandbox is running but port is not open", "code": 502}, 502)
        elif path != "/health" and headers.get("x-access-token") != sandbox.token:
            app = refused(401, "access token is missing or wrong")
        else:
            current.set(sandbox)
            user.set(user_of(headers.get("authorization", "")))
            app = self._envd(path)
        return await app(scope, receive, send)

    def _envd(self, path: str) -> Any:
        if path.startswith("/process.Process/"):
            known = {"Start", "Connect", "List", "SendSignal", "SendInput", "CloseStdin"}
            return processes if path.rpartition("/")[2] in known else self._unknown(path)
        if path.startswith("/filesystem.Filesystem/"):
            return files if path.rpartition("/")[2] in {"Stat", "MakeDir"} else self._unknown(path)
        return http if path in ("/health", "/files") else self._unknown(path)

    def _unknown(self, call: str) -> Response:
        self.world.unknown.append(call)
        return refused(501, f"the double knows no {call}")


async def _swallow(message: Any) -> None:
    """Nobody hears it."""


def _counted(send: Any, pieces: int) -> Any:
    """Passes so many messages of an answer on, then cuts the connection."""
    left = pieces

    async def count(message: Any) -> None:
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1
        await send(message)

    return count


@contextlib.asynccontextmanager
async def serve() -> AsyncIterator[tuple[World, str]]:
    """A double on this event loop: its world, and its address."""
    async with World.open() as world:
        double = Double(world)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            with contextlib.suppress(Cut):
                await double(scope, receive, send)

        served = await Served.start(app)
        try:
            yield world, served.url
        finally:
            await served.close()


class E2BDouble:
    """A double in a thread of its own, for as long as the context is open.

    Attributes:
        world: The account; what it does is done by :meth:`do`.
        env: The variables that lead the SDK to it.
    """

    world: World
    env: dict[str, str]

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started)), name="e2b-double")
        self._thread.start()
        started.result()
        return self

    async def _run(self, started: Future[None]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with serve() as (self.world, url):
                self.env = settings(url)
                started.set_result(None)
                await self._over.wait()
        except BaseException as exc:
            if not started.done():
                started.set_exception(exc)
            raise

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something in the account."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


def _main() -> int:
    with E2BDouble() as double:
        print(json.dumps(double.env), flush=True)
        sys.stdin.read()
        return len(double.world.unknown) + len(double.world.sandboxes)


if __name__ == "__main__":
    sys.exit(_main())

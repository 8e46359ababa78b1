"""A double of Modal: its control plane and its command router, as the SDK's own published stubs have them.

The SDK talks to it over real sockets and knows no difference; behind it stands a :class:`~box.Box` for each sandbox, so
that commands, files, ports, times to live and ends are real. It knows the calls that the plugin needs and no other: one
that it doesn't know, or a field that it would ignore, is answered with UNIMPLEMENTED and noted in ``unknown``.

In a test, ``ModalDouble`` runs it in a thread. ``python modal_double.py`` serves it and prints the variables that lead
the SDK to it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar
from weakref import WeakSet

from grpclib.protocol import H2Protocol
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_control import Control
from modal_router import Router
from modal_world import CREDENTIALS, World

T = TypeVar("T")


class Closing(Server):
    """A server that hangs up on its clients when it closes."""

    _connections: WeakSet[H2Protocol]

    def _protocol_factory(self) -> H2Protocol:
        if not hasattr(self, "_connections"):
            self._connections = WeakSet()
        made = super()._protocol_factory()
        self._connections.add(made)
        return made

    def close(self) -> None:
        super().close()
        for each in getattr(self, "_connections", ()):
            each.connection.close()


async def serve(world: World) -> list[Server]:
    """Opens both services on ports of their own."""
    servers = []
    for service in (Control(world), Router(world)):
        server = Closing([service], status_details_codec=custom_detail_codec)
        await server.start("127.0.0.1", 0)
        servers.append(server)
    control, router = (each._server.sockets[0].getsockname()[1] for each in servers)  # type: ignore[union-attr]
    world.url, world.router_url = f"http://127.0.0.1:{control}", f"http://127.0.0.1:{router}"
    return servers


def variables(world: World) -> dict[str, str]:
    """What leads the SDK to it."""
    token_id, secret = CREDENTIALS
    return {
        "MODAL_SERVER_URL": world.url,
        "MODAL_TOKEN_ID": token_id,
        "MODAL_TOKEN_SECRET": secret,
        "MODAL_CONFIG_PATH": "/nonexistent/modal.toml",
    }


class ModalDouble:
    """The double in a thread, for as long as the context is open."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="modal-double", daemon=True)
        self._servers: list[Server] = []
        self.world: World

    @property
    def env(self) -> Mapping[str, str]:
        """What leads the SDK to it."""
        return variables(self.world)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something in the double's own thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def __enter__(self) -> ModalDouble:
        self._thread.start()

        async def start() -> None:
            self.world = World()
            self._servers = await serve(self.world)

        self.do(start())
        return self

    def __exit__(self, *_: object) -> None:
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.world.images.folder, ignore_errors=True)

    async def _stop(self) -> None:
        await self.world.close()
        for server in self._servers:
            server.close()
            await server.wait_closed()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for _ in range(3):  # connections are closed in steps of the loop
            await asyncio.sleep(0)


def main() -> None:
    """Serves a double until its input ends; fails where something was left, or called that it doesn't know."""
    with ModalDouble() as double:
        print(json.dumps(dict(double.env)), flush=True)
        sys.stdin.read()
        world = double.world
        wrong = [*world.control.unknown, *world.router.unknown, *(each.id for each in world.running())]
    sys.exit(" ".join(wrong) or 0)


if __name__ == "__main__":
    main()

"""A server on this process's own threads, over the counter bundle and the process provider."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from openenv.core.generic_client import GenericEnvClient

from agent_env_core.server.app import app_of, service_for
from agent_env_core.server.service import Service

READY_SECONDS = 60


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    url: str
    service: Service

    @contextmanager
    def session(self, **keywords: Any) -> Iterator[Any]:
        """A session of OpenEnv's own generic client."""
        client = GenericEnvClient(base_url=self.url, **keywords).sync()
        try:
            yield client
        finally:
            client.close()


@contextmanager
def running(service: Service, app: Any = None) -> Iterator[Running]:
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app or app_of(service), log_config=None, lifespan="on", timeout_graceful_shutdown=5, ws_ping_interval=None
        )
        server = Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert started.wait(READY_SECONDS), "the server didn't start; see the log"
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", service)
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def serve(counter_bundle: Path) -> Iterator[Callable[..., Running]]:
    """A function that starts a server, by default of the counter bundle; it's stopped at the end of the test."""
    with ExitStack() as stack:

        def start(bundle: Any = counter_bundle, **keywords: Any) -> Running:
            service = service_for(bundle, **{"sandbox": "process", **keywords})
            return stack.enter_context(running(service))

        yield start


@pytest.fixture(scope="module")
def counter(counter_bundle: Path) -> Iterator[Running]:
    """One server for a module's tests that leave it as they found it."""
    with running(service_for(counter_bundle, sandbox="process")) as server:
        yield server


@pytest.fixture
def changed_counter(counter_bundle: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that copies the counter bundle with changes: how its env starts, tasks that are added or dropped."""

    def change(start: str = "", tasks: dict[str, list[dict[str, Any]]] | None = None, name: str = "changed") -> Path:
        copy = tmp_path / name
        shutil.copytree(counter_bundle, copy)
        dockerfile = copy / "envs" / "counter" / "Dockerfile"
        text = dockerfile.read_text(encoding="utf-8")
        dockerfile.write_text(text.replace('COUNTER_START=""', f'COUNTER_START="{start}"'), encoding="utf-8")
        for task, steps in (tasks or {}).items():
            (copy / "tasks" / f"{task}.json").write_text(json.dumps(steps), encoding="utf-8")
        return copy

    return change

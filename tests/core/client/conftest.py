"""A server that speaks OpenEnv's wire as a test tells it to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from agent_env_core.client import Address, Session

Talk = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The server's end of one session."""

    def __init__(self, socket: ServerConnection, server: ScriptedServer) -> None:
        self.socket = socket
        self.server = server

    async def heard(self) -> dict[str, Any]:
        """The next message, which is kept for the test to look at."""
        message: dict[str, Any] = json.loads(await self.socket.recv())
        self.server.heard.append(message)
        return message

    async def observe(self, done: bool = False, reward: float | None = None, **parts: Any) -> None:
        """Answers with an observation; ``metadata`` stands where OpenEnv puts it."""
        metadata = parts.get("metadata")
        data = {"observation": {"metadata": metadata or {}, **parts}, "reward": reward, "done": done}
        await self.say({"type": "observation", "data": data | ({"metadata": metadata} if metadata else {})})

    async def say(self, message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def welcome(self) -> None:
        """Answers the question a client asks to learn whether there's room."""
        assert (await self.heard())["type"] == "state"
        await self.say({"type": "state", "data": {"step_count": 0}})

    async def open_turn(self, prompt: str = "go", system: str | None = None, number: int = 1, of: int = 1) -> None:
        """Answers a reset."""
        message = await self.heard()
        assert message["type"] == "reset"
        turn = {"number": number, "of": of, "tools": {"digest": "abc", "names": ["look"]}}
        await self.observe(metadata={"prompt": prompt, "system_prompt": system, "turn": turn})

    async def answer(self, text: str) -> None:
        """Answers a tool call."""
        await self.heard()
        await self.observe(result={"data": text, "is_error": False}, error=None)

    async def score(self, reward: float = 1.0) -> None:
        """Answers the end of the last turn."""
        assert (await self.heard())["data"]["tool_name"] == "end_turn"
        await self.observe(done=True, reward=reward, metadata={"scores": {"grade": reward}})

    async def episode(self) -> None:
        """Plays one from its welcome to its score of 0.5."""
        await self.welcome()
        await self.open_turn()
        await self.answer("a view")
        await self.score(0.5)
        await self.socket.wait_closed()


class ScriptedServer:
    """Plays one script for each connection, in order; the last one for all that come after."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.connections = 0
        self.scripts: list[Talk] = []
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._server: Server = self.run(self._serve())
        host, port = next(iter(self._server.sockets)).getsockname()[:2]
        self.url = f"http://{host}:{port}"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def _serve(self) -> Server:
        return await serve(self._talk, "127.0.0.1", 0)

    async def _talk(self, socket: ServerConnection) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        await script(Peer(socket, self))

    def event(self) -> threading.Event:
        """An event that scripts wait for with :meth:`happened`."""
        return threading.Event()

    def stop(self) -> None:
        """Closes the port and every connection."""
        self._server.close()
        self.run(self._server.wait_closed())

    def end(self) -> None:
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedServer]]:
    """A function that starts a server from the scripts it's given."""
    servers: list[ScriptedServer] = []

    def start(*scripts: Talk) -> ScriptedServer:
        server = ScriptedServer()
        server.scripts = list(scripts)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def connect() -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(server: Any, **keywords: Any) -> Session:
        sessions.append(Session(Address.of(getattr(server, "url", server)), **keywords))
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()

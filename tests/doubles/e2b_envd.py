"""envd, the daemon in every sandbox of E2B: processes, files, and the proxy to a sandbox's ports.

Processes and the filesystem are served by the stubs that come with the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import pwd
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import h11
from box import Process
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.filesystem import filesystem_pb as fs
from e2b.envd.filesystem.filesystem_connect import Filesystem
from e2b.envd.process import process_connect
from e2b.envd.process import process_pb as pp
from e2b_world import Sandbox
from protobuf import Oneof
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

current: contextvars.ContextVar[Sandbox] = contextvars.ContextVar("sandbox")
user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

CUT = "the connection to the sandbox ended before the stream completed"


class Command:
    """A process that was started, read to its end whether anybody listens or not."""

    def __init__(self, sandbox: Sandbox, process: Process, config: pp.ProcessConfig) -> None:
        self.sandbox, self.process, self.config = sandbox, process, config
        self._listeners: set[asyncio.Queue[Any]] = set()
        self._ended: Oneof | None = None
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async def pump(name: str, reader: asyncio.StreamReader) -> None:
            while data := await reader.read(1 << 16):
                self._tell(Oneof("data", pp.ProcessEvent.DataEvent(output=Oneof(name, data))))

        # As the real one: its end is told when nobody holds its output any more.
        await asyncio.gather(pump("stdout", self.process.stdout), pump("stderr", self.process.stderr))
        code = await self.process.wait()
        self.sandbox.commands.pop(self.process.pid, None)
        status = f"exit status {code}" if code >= 0 else f"signal: {signal.Signals(-code).name.lower()}"
        more = {} if code == 0 else {"error": status}
        end = pp.ProcessEvent.EndEvent(exit_code=code if code >= 0 else -1, exited=code >= 0, status=status, **more)
        self._ended = Oneof("end", end)
        self._tell(self._ended)

    def _tell(self, event: Oneof) -> None:
        for listener in self._listeners:
            listener.put_nowait(event)

    async def events(self) -> AsyncIterator[pp.ProcessEvent]:
        """What happens from now on."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            yield pp.ProcessEvent(event=Oneof("start", pp.ProcessEvent.StartEvent(pid=self.process.pid)))
            while True:
                event = self._ended if self._ended is not None and queue.empty() else await queue.get()
                if not self.sandbox.alive:
                    raise ConnectError(Code.UNAVAILABLE, CUT)
                yield pp.ProcessEvent(event=event)
                if event.field == "end":
                    return
        finally:
            self._listeners.discard(queue)


class Processes(process_connect.Process):
    """Starting, finding and ending processes."""

    async def start(self, request: Any, ctx: Any) -> AsyncIterator[Any]:
        sandbox, config = current.get(), request.process
        argv, cwd = [config.cmd, *config.args], config.cwd if config.has_field("cwd") else "/root"
        name = user.get() or "root"
        if name != "root":
            known = pwd.getpwnam(name)
            argv = ["setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", "--clear-groups", *argv]
        env = {"HOME": "/root", "USER": name, **sandbox.env, **dict(config.envs)}
        try:
            process = await sandbox.box.spawn(argv, env=env, cwd=cwd)
        except OSError as exc:
            raise ConnectError(Code.INVALID_ARGUMENT, str(exc)) from exc
        if not (request.has_field("stdin") and request.stdin):
            process.stdin.close()
        command = sandbox.commands[process.pid] = Command(sandbox, process, config)
        seconds = ctx.timeout_ms / 1000 if ctx.timeout_ms else None
        try:
            async with asyncio.timeout(seconds):
                async for event in command.events():
                    yield pp.StartResponse(event=event)
        except TimeoutError:
            process.kill()  # the real one ends a process with the time of the call that started it
            raise ConnectError(Code.DEADLINE_EXCEEDED, "context deadline exceeded") from None

    async def connect(self, request: Any, ctx: Any) -> AsyncIterator[Any]:
        async for event in self._selected(request.process).events():
            yield pp.ConnectResponse(event=event)

    def _selected(self, selector: Any) -> Command:
        pid = selector.selector.value
        if pid not in current.get().commands:
            raise ConnectError(Code.NOT_FOUND, f"process with pid {pid} not found")
        found: Command = current.get().commands[pid]
        return found

    async def list(self, request: Any, ctx: Any) -> Any:
        found = current.get().commands.items()
        return pp.ListResponse(processes=[pp.ProcessInfo(pid=pid, config=each.config) for pid, each in found])

    async def send_signal(self, request: Any, ctx: Any) -> Any:
        self._selected(request.process).process.kill()
        return pp.SendSignalResponse()

    async def send_input(self, request: Any, ctx: Any) -> Any:
        process = self._selected(request.process).process
        process.stdin.write(request.input.input.value)
        await process.stdin.drain()
        return pp.SendInputResponse()

    async def close_stdin(self, request: Any, ctx: Any) -> Any:
        self._selected(request.process).process.stdin.close()
        return pp.CloseStdinResponse()


def _inside(path: str) -> Path:
    return Path("/root", path)


class Files(Filesystem):
    """Folders. What isn't here is refused as unimplemented, by the stub."""

    def _entry(self, path: Path) -> Any:
        try:
            known = path.lstat()
        except FileNotFoundError:
            raise ConnectError(Code.NOT_FOUND, f"path '{path}' not found") from None
        kind = fs.FileType.DIRECTORY if stat.S_ISDIR(known.st_mode) else fs.FileType.FILE
        return fs.EntryInfo(name=path.name, type=kind, path=str(path), size=known.st_size)

    async def stat(self, request: Any, ctx: Any) -> Any:
        return fs.StatResponse(entry=await current.get().box.inside(lambda: self._entry(_inside(request.path))))

    async def make_dir(self, request: Any, ctx: Any) -> Any:
        path = _inside(request.path)

        def make() -> Any:
            if path.exists():
                raise ConnectError(Code.ALREADY_EXISTS, f"{path} exists")
            path.mkdir(parents=True)
            return self._entry(path)

        return fs.MakeDirResponse(entry=await current.get().box.inside(make))


async def _read(request: Request) -> Response:
    path = _inside(request.query_params["path"])

    def read() -> Response:
        if not path.exists():
            return JSONResponse({"code": 404, "message": f"path '{path}' does not exist"}, 404)
        if path.is_dir():
            return JSONResponse({"code": 400, "message": f"path '{path}' is a directory"}, 400)
        return Response(path.read_bytes(), media_type="application/octet-stream")

    return await current.get().box.inside(read)


async def _write(request: Request) -> Response:
    path = _inside(request.query_params["path"])
    if request.headers.get("content-type") != "application/octet-stream":
        raise AssertionError("files are expected as they are: application/octet-stream")
    data, name = await request.body(), request.query_params.get("username", "root")

    def write() -> Response:
        if path.is_dir():
            return JSONResponse({"code": 400, "message": f"path '{path}' is a directory"}, 400)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if name != "root":
            import shutil

            shutil.chown(path, name)
        return JSONResponse([{"name": path.name, "type": "file", "path": str(path)}])

    return await current.get().box.inside(write)


async def _health(request: Request) -> Response:
    return Response(status_code=204)


http = Starlette(
    routes=[
        Route("/health", _health),
        Route("/files", _read, methods=["GET"]),
        Route("/files", _write, methods=["POST"]),
    ]
)
processes = process_connect.ProcessASGIApplication(Processes())


async def forward(scope: Any, receive: Any, send: Any, sandbox: Sandbox, port: int) -> None:
    """One request to a port of a sandbox; the answer is passed on as it comes."""
    body = await Request(scope, receive).body()
    reader, writer = await sandbox.box.connect(port)
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    left_out = (b"connection", b"content-length", b"transfer-encoding", b"e2b-traffic-access-token")
    headers = [pair for pair in scope["headers"] if pair[0] not in left_out]
    headers += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    wire = h11.Connection(h11.CLIENT)
    asked = h11.Request(method=scope["method"], target=target, headers=headers)
    writer.write(
        (wire.send(asked) or b"") + (wire.send(h11.Data(body)) or b"") + (wire.send(h11.EndOfMessage()) or b"")
    )
    try:
        while not isinstance(event := wire.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if event is h11.NEED_DATA:
                wire.receive_data(await reader.read(1 << 16))
            elif isinstance(event, h11.Response):
                kept = [pair for pair in event.headers if pair[0] not in (b"transfer-encoding", b"connection")]
                start = {"type": "http.response.start", "status": event.status_code, "headers": kept}
                await send(start)
            elif isinstance(event, h11.Data):
                await send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def user_of(header: str) -> str:
    """The user that an ``Authorization: Basic`` header names."""
    import base64

    return base64.b64decode(header.partition(" ")[2]).decode().partition(":")[0] if header else ""

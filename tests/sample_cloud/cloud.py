"""The made-up service of ``docs/writing-a-sandbox-provider.md``: its HTTP API over the process provider.

``python cloud.py FOLDER`` serves it on a port of its own, which it prints. ``/world`` is for tests: what exists, what
was created, and faults on demand.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
import sys
import tarfile
import tempfile
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import uvicorn
from agent_env_process.provider import ProcessProvider
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_env_core.errors import Gone, ImageError, Unsupported
from agent_env_core.sandbox.contract import Image, SandboxSpec

TOKEN = "acme-test-token"

CODES: dict[type[Exception], tuple[int, str]] = {
    Gone: (404, "no_sandbox"),
    ImageError: (422, "bad_image"),
    Unsupported: (422, "unsupported"),
    FileNotFoundError: (404, "no_file"),
    IsADirectoryError: (409, "is_folder"),
    PermissionError: (403, "no_permission"),
}


class World:
    """Everything the service knows."""

    def __init__(self, folder: Path) -> None:
        self.provider = ProcessProvider({"cache_dir": str(folder / "cache"), "state_dir": str(folder / "state")})
        self.created, self.fault = 0, ""
        self.labels: dict[str, dict[str, str]] = {}
        self.calls: dict[str, asyncio.Task[Any]] = {}


def says(status: int, code: str, message: str, **headers: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status, headers)


def guarded(world: World, work: Any) -> Any:
    """A route with the token, the faults, and the errors as the API words them."""

    async def route(request: Request) -> Response:
        if world.fault == "config" or request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return says(401, "denied", "the token is refused")
        if world.fault == "unavailable":
            return says(503, "down", "try later")
        if world.fault == "busy" and (request.method, request.url.path) == ("POST", "/sandbox"):
            return says(429, "full", "the account's limit is reached", **{"Retry-After": "0.01"})
        try:
            reply: Response = await work(world, request)
        except tuple(CODES) as exc:
            status, code = next(pair for kind, pair in CODES.items() if isinstance(exc, kind))
            reply = says(status, code, str(exc))
        return says(502, "lost", "bad gateway") if world.fault == "lost" else reply

    return route


async def build(world: World, request: Request) -> Response:
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(await request.body())) as tar:
            tar.extractall(folder, filter="data")
        image = Image(context=Path(folder), dockerfile=request.query_params["dockerfile"])
        return JSONResponse({"id": await world.provider.prepare(image)})


async def create(world: World, request: Request) -> Response:
    asked = await request.json()
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}
    box = await world.provider.create(SandboxSpec(**settings))
    world.created += 1
    world.labels[box.id] = dict(asked["labels"])
    return JSONResponse({"id": box.id}, 201)


async def find(world: World, request: Request) -> Response:
    box = await world.provider.attach(request.query_params["id"])
    return JSONResponse({"id": box.id})


async def end(world: World, request: Request) -> Response:
    sandbox_id = request.query_params["id"]
    world.labels.pop(sandbox_id, None)
    if not await world.provider.kill(sandbox_id):
        raise Gone(f"there is no sandbox {sandbox_id!r}")
    return Response(status_code=204)


async def listed(world: World, request: Request) -> Response:
    labels = dict(item.split("=", 1) for item in request.query_params.getlist("label"))
    return JSONResponse([{"id": each.id, "labels": dict(each.labels)} async for each in world.provider.list(labels)])


async def run(world: World, request: Request) -> Response:
    asked = await request.json()
    box = await world.provider.attach(request.query_params["id"])
    stdin = b64decode(asked["stdin"])
    work = asyncio.ensure_future(
        box.exec(asked["argv"], env=asked["env"], cwd=asked["cwd"], stdin=stdin, timeout=asked["timeout"])
    )
    name = request.query_params["call"]
    world.calls[name] = work
    try:
        done = await work
    except asyncio.CancelledError:
        return says(409, "stopped", "the call was stopped")
    finally:
        del world.calls[name]
    streams = {"stdout": b64encode(done.stdout).decode(), "stderr": b64encode(done.stderr).decode()}
    return JSONResponse({"exit_code": done.exit_code, "timed_out": done.timed_out, **streams})


async def stop(world: World, request: Request) -> Response:
    if (work := world.calls.get(request.query_params["call"])) is not None:
        work.cancel()
    return Response(status_code=204)


async def read(world: World, request: Request) -> Response:
    box = await world.provider.attach(request.query_params["id"])
    return Response(await box.read(request.query_params["path"]), media_type="application/octet-stream")


async def write(world: World, request: Request) -> Response:
    box = await world.provider.attach(request.query_params["id"])
    await box.write(request.query_params["path"], await request.body())
    return Response(status_code=204)


async def port(world: World, request: Request) -> Response:
    box = await world.provider.attach(request.query_params["id"])
    endpoint = await box.endpoint(int(request.query_params["port"]))
    return JSONResponse({"url": endpoint.url, "headers": dict(endpoint.headers)})


async def extend(world: World, request: Request) -> Response:
    box = await world.provider.attach(request.query_params["id"])
    await box.extend((await request.json())["ttl"])
    return Response(status_code=204)


def app_of(world: World) -> Starlette:
    async def seen(request: Request) -> Response:
        exist = {box.id: dict(box.labels) async for box in world.provider.list({})}
        return JSONResponse({"created": world.created, "exist": exist})

    async def change(request: Request) -> Response:
        world.fault = request.query_params["fault"]
        if world.fault == "evicted":
            for sandbox_id in list(world.labels):
                await world.provider.kill(sandbox_id)
        return Response(status_code=204)

    api = [
        ("/images", "POST", build),
        ("/sandbox", "POST", create),
        ("/sandbox", "GET", find),
        ("/sandbox", "DELETE", end),
        ("/sandboxes", "GET", listed),
        ("/exec", "POST", run),
        ("/exec", "DELETE", stop),
        ("/file", "GET", read),
        ("/file", "PUT", write),
        ("/port", "GET", port),
        ("/ttl", "PUT", extend),
    ]
    routes = [Route(path, guarded(world, work), methods=[method]) for path, method, work in api]
    routes += [Route("/world", seen, methods=["GET"]), Route("/world", change, methods=["PUT"])]
    return Starlette(routes=routes)


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(json.dumps(f"http://127.0.0.1:{listening.getsockname()[1]}"), flush=True)
    config = uvicorn.Config(app_of(World(Path(sys.argv[1]))), log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()

"""One run of one ``verify``, in a process of its own that was forked for it and ends with it."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from agent_env_core.verifiers.record import read_run
from agent_env_core.verifiers.wire import MAX_FRAME, pack

MODULE = "agent_env_bundle_verifier"


class _Fault(Exception):
    """What is wrong with a verifier, said so that its author can mend it."""


def run(job: Mapping[str, Any], write: Callable[[bytes], Any]) -> None:
    """Runs a verifier and writes one frame: ``{"rows": …}``, or ``{"fault": text, "retryable": bool}``.

    Args:
        job: ``file``, ``mcp_url``, ``base_url``, ``headers``, ``run``, ``arguments``.
        write: Writes all of its bytes.
    """
    try:
        reply = pack({"rows": _verify(job)})
        if len(reply) > MAX_FRAME:
            raise _Fault(f"returned {len(reply)} bytes of rows; {MAX_FRAME >> 20} MiB is the limit")
    except BaseException as exc:  # a verifier may raise anything, SystemExit included; its process ends right after
        reply = pack({"fault": _told(exc, job["file"]), "retryable": _is_transient(exc)})
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    write(reply)


def _verify(job: Mapping[str, Any]) -> list[Any]:
    verify = _load(job["file"])
    if job["headers"]:
        _add_headers(job["base_url"], job["headers"])
    arguments: dict[str, Any] = dict(job["arguments"])
    if "run" in inspect.signature(verify).parameters:
        arguments["run"] = read_run(job["run"])
    outcome = verify(job["mcp_url"], **arguments)
    if not inspect.isawaitable(outcome):
        raise _Fault("must be an async function: async def verify(mcp_url)")
    rows = asyncio.run(_awaited(outcome))
    if not isinstance(rows, list):
        raise _Fault(f"must return a list of dicts, and returned {type(rows).__name__}")
    return [_portable(row, number) for number, row in enumerate(rows)]


async def _awaited(outcome: Awaitable[Any]) -> Any:
    return await outcome


def _load(file: str) -> Callable[..., Any]:
    """The ``verify`` of a file, loaded as a module of its own; nothing is written beside the file."""
    module = ModuleType(MODULE)
    module.__file__ = file
    sys.modules[MODULE] = module
    exec(compile(Path(file).read_bytes(), file, "exec"), module.__dict__)  # noqa: S102 - this is what a verifier is
    verify: Callable[..., Any] | None = getattr(module, "verify", None)
    if not callable(verify):
        raise _Fault("defines no function verify: async def verify(mcp_url) must return a list of rows")
    return verify


def _portable(row: Any, number: int) -> Any:
    """A row that survives JSON with its meaning: numbers of other libraries become Python's, other objects text.

    So do numbers that JSON doesn't have, such as NaN: as evidence they are kept, and as a score they are told of.
    """
    if not isinstance(row, dict):
        raise _Fault(f"must return dicts, and row {number} is {type(row).__name__}: {repr(row)[:80]}")
    kept = dict(row)
    for key in ("score", "weight"):
        if hasattr(kept.get(key), "__float__") and not isinstance(kept[key], int | float):
            kept[key] = float(kept[key])
    if not isinstance(kept.get("result"), bool | int | float | str | list | dict | None):
        kept["result"] = int(bool(kept["result"]))  # true enough for an average, and not the True that all_pass wants
    try:
        plain: Any = json.loads(json.dumps(kept, default=repr, skipkeys=True), parse_constant=str)
    except (ValueError, RecursionError) as exc:
        raise _Fault(f"returned a row {number} that can't be written as JSON: {exc}") from exc
    return plain


def _add_headers(base_url: str, headers: Mapping[str, str]) -> None:
    """Makes every request of httpx to the env carry the headers that its sandbox wants.

    Whatever verifiers call an env with, ``agentenv_protocol.client``, its ``ToolSession`` or a client of ``mcp``, is
    built on httpx. The headers hold the key to the sandbox, so no other address gets them.
    """
    import httpx

    env = httpx.URL(base_url)
    folder = env.path.rstrip("/") + "/"

    def stamp(request: httpx.Request) -> None:
        url = request.url
        if (url.scheme, url.host, url.port) == (env.scheme, env.host, env.port) and f"{url.path}/".startswith(folder):
            request.headers.update(headers)

    plain, awaited = httpx.HTTPTransport.handle_request, httpx.AsyncHTTPTransport.handle_async_request

    def handle_request(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        stamp(request)
        return plain(self, request)

    async def handle_async_request(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        stamp(request)
        return await awaited(self, request)

    httpx.HTTPTransport.handle_request = handle_request  # type: ignore[method-assign]
    httpx.AsyncHTTPTransport.handle_async_request = handle_async_request  # type: ignore[method-assign]


def _told(exc: BaseException, file: str) -> str:
    if isinstance(exc, _Fault):
        return str(exc)
    if isinstance(exc, BaseExceptionGroup):  # what a task group wraps around the one error that matters
        inner = exc
        while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
            inner = inner.exceptions[0]
        exc = inner
    if isinstance(exc, SystemExit):
        return f"called sys.exit({'' if exc.code is None else repr(exc.code)})"
    said = " ".join(str(exc).split())[:1000]
    lines = [frame.lineno for frame in traceback.extract_tb(exc.__traceback__) if frame.filename == file]
    where = f" ({os.path.basename(file)}, line {lines[-1]})" if lines else ""
    return f"raised {type(exc).__name__}{': ' + said if said else ''}{where}"


def _is_transient(exc: BaseException) -> bool:
    """Whether a verifier failed because it couldn't reach the env, rather than by its own fault."""
    if isinstance(exc, BaseExceptionGroup):
        return all(_is_transient(inner) for inner in exc.exceptions)
    if isinstance(exc, ConnectionError | TimeoutError):
        return True
    httpx = sys.modules.get("httpx")
    return httpx is not None and isinstance(exc, httpx.TransportError)

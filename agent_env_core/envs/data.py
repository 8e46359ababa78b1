"""The data plane of an env's servers: what they hold is reset, seeded and exported over JSON-RPC.

A seed travels as one file part for each server. The file is staged in the server's sandbox below ``/data`` and named by
a ``file://`` address, since that is the one form that every published server has been given.
"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote, urlsplit

from agent_env_core.envs.card import RPC_PATH
from agent_env_core.errors import EpisodeError, SandboxError, describe

if TYPE_CHECKING:
    from agent_env_core.envs.deployment import Deployment
    from agent_env_core.sandbox.contract import Sandbox

Operation = Literal["data/reset", "data/add", "data/get"]

STAGE = "/data"
"""Where seeds are staged in a sandbox."""
RESET_TIMEOUT = 30.0
LOAD_TIMEOUT, LOAD_TIMEOUT_PER_GB, LOAD_TIMEOUT_CAP = 900.0, 1200.0, 3600.0
"""Seconds that loading a seed may take: at least, more for each gigabyte, and at most."""
MAX_EXPORT = 256 * 1024 * 1024
"""Bytes of one server's exported data that are read at most."""
FIND_TIMEOUT = 30.0


@dataclass(frozen=True)
class Seed:
    """What one server of an env is filled with: a file."""

    name: str
    data: bytes

    @property
    def timeout(self) -> float:
        """Seconds that loading it may take."""
        return min(LOAD_TIMEOUT + LOAD_TIMEOUT_PER_GB * len(self.data) / 1e9, LOAD_TIMEOUT_CAP)


Seeds = Mapping[str, Seed]
"""Seeds by the environment name of the server they are for."""


async def call(server: Deployment, operation: Operation, params: Mapping[str, Any], *, timeout: float) -> Any:
    """Calls one operation of a server's data plane and returns its result.

    Raises:
        EpisodeError: The server doesn't serve it, refused it, failed, or didn't answer in time.
    """
    what = f"{operation} of the env {server.env.name!r}"
    message = {"jsonrpc": "2.0", "id": 1, "method": operation, "params": dict(params)}
    answer = await server.request("POST", RPC_PATH, what, timeout=timeout, limit=MAX_EXPORT, json=message)
    if not answer.ok:
        raise EpisodeError("setup", f"{what} answered {answer.status}: {answer.said}")
    try:
        found = answer.json()
    except ValueError as exc:
        raise EpisodeError("setup", f"{what} answered with what is not JSON: {exc}") from exc
    if not isinstance(found, dict) or ("result" not in found and "error" not in found):
        raise EpisodeError("setup", f"{what} answered with neither a result nor an error")
    if (error := found.get("error")) is not None:
        raise EpisodeError("setup", f"{what} failed: {_said(error)}")
    return found["result"]


def serves(server: Deployment, operation: Operation) -> bool:
    """Whether a server's card says that it has an operation."""
    return operation in server.card.operations


async def reset(server: Deployment) -> None:
    """Empties a server; raises like :func:`call`."""
    await call(server, "data/reset", {}, timeout=RESET_TIMEOUT)


async def load(server: Deployment, seed: Seed) -> None:
    """Fills a server with a seed and nothing else.

    Raises:
        EpisodeError: The file can't be staged, or the server doesn't take it.
    """
    address = await _stage(server, seed)
    if serves(server, "data/reset"):
        await call(server, "data/reset", {}, timeout=seed.timeout)
    part = {"kind": "file", "file": {"uri": address, "name": seed.name}}
    await call(server, "data/add", {"parts": [part]}, timeout=seed.timeout)


async def export(server: Deployment, *, timeout: float) -> Seed | None:
    """What a server holds, as a seed that fills another one with it; None where it holds nothing.

    One part becomes a file of its content: JSON of data, text as it is, a file's bytes. Several become JSON of all of
    them.

    Raises:
        EpisodeError: The server can't export, or hands out what can't be read.
    """
    result = await call(server, "data/get", {}, timeout=timeout)
    parts = result.get("parts") if isinstance(result, dict) else None
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise EpisodeError("setup", f"data/get of the env {server.env.name!r} answered with no list of parts")
    if not parts:
        return None
    name = f"{server.card.name}.json"
    if len(parts) > 1:
        return Seed(name, json.dumps({"parts": parts}).encode())
    (part,) = parts
    if part.get("kind") == "data":
        return Seed(name, json.dumps(part.get("data")).encode())
    if part.get("kind") == "text":
        return Seed(f"{server.card.name}.txt", str(part.get("text")).encode())
    return await _file(server, part.get("file"))


async def _file(server: Deployment, file: Any) -> Seed:
    what = f"data/get of the env {server.env.name!r}"
    file = file if isinstance(file, dict) else {}
    address = str(file.get("uri") or "")
    name = posixpath.basename(str(file.get("name") or unquote(urlsplit(address).path)))
    if name in ("", ".", ".."):
        name = f"{server.card.name}.bin"
    if isinstance(file.get("bytes"), str):
        try:
            return Seed(name, base64.b64decode(file["bytes"], validate=True))
        except binascii.Error as exc:
            raise EpisodeError("setup", f"{what} answered with a file that is no base64: {exc}") from exc
    if not address.startswith("file://"):
        raise EpisodeError("setup", f"{what} answered with a file at {address!r}; only file:// can be read")
    try:
        return Seed(name, await server.sandbox.read(unquote(urlsplit(address).path)))
    except (OSError, SandboxError) as exc:
        raise EpisodeError("setup", f"{what} answered with a file that can't be read: {describe(exc)}") from exc


async def _stage(server: Deployment, seed: Seed) -> str:
    """Puts a seed's file where the server's own code finds it; returns its address."""
    path = f"{STAGE}/{seed.name}"
    try:
        await server.sandbox.write(path, seed.data)
        place = await _seen_as(server.sandbox, STAGE)
    except (OSError, SandboxError) as exc:
        retryable = isinstance(exc, SandboxError) and exc.retryable
        reason = f"{path} can't be written in the sandbox of the env {server.env.name!r}: {describe(exc)}"
        raise EpisodeError("setup", reason, retryable=retryable) from exc
    return f"file://{quote(place)}/{quote(seed.name)}"


async def _seen_as(sandbox: Sandbox, folder: str) -> str:
    """How programs in a sandbox see a folder of it: under another path where the sandbox has no root of its own."""
    found = await sandbox.exec(["pwd", "-P"], cwd=folder, timeout=FIND_TIMEOUT)
    said = found.stdout.decode(errors="replace").strip()
    return said if found.exit_code == 0 and said.startswith("/") else folder


def _said(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)[:1000]
    data = error.get("data")
    code = data.get("code") if isinstance(data, dict) else None
    return f"{str(error.get('message'))[:1000]} (code {code or error.get('code')})"

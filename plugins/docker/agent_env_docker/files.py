"""Files of a sandbox, through the engine's archive calls: bytes as they are, and nothing is needed in the image.

Reading and writing act as the engine does, as root. What is written belongs to the image's user, and so do the folders
made for it; a file that is replaced keeps its mode.
"""

from __future__ import annotations

import base64
import errno
import io
import json
import os
import posixpath
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any, cast

from agent_env_core.errors import Unavailable
from agent_env_core.sandbox.contract import MOST_READ
from agent_env_docker.failure import alive, inside

if TYPE_CHECKING:
    import requests
    from docker import APIClient

# Go's file mode bits, which the engine's stat header uses.
_GO_DIR = 1 << 31
_FROM_URL = str.maketrans("-_", "+/")
_OF_PODMAN = "Libpod-API-Version"
_OF_PATTERNS = re.compile(r"[\\?\[\]]")
_ESCAPED = re.compile(r"\\([\\?\[\]])")

_NOT_ON_DISK = ("/dev", "/proc", "/sys")


def read(client: APIClient, sandbox_id: str, path: str) -> bytes:
    """Reads a file; see :meth:`agent_env_core.sandbox.contract.Sandbox.read`."""
    _check(path)
    with inside(client, sandbox_id, f"reading {path}"):
        alive(client, sandbox_id)  # files of a container that has stopped can be read, and must not be
        return _content(client, sandbox_id, path)


def write(client: APIClient, sandbox_id: str, path: str, data: bytes) -> None:
    """Writes a file; see :meth:`agent_env_core.sandbox.contract.Sandbox.write`."""
    _check(path)
    path = posixpath.normpath(path)
    with inside(client, sandbox_id, f"writing {path}"):
        uid, gid = _owner(client, sandbox_id, alive(client, sandbox_id))
        status = _stat(client, sandbox_id, path)
        if status is not None and status["linkTarget"]:
            path = status["linkTarget"]
            status = _stat(client, sandbox_id, path)
        _refuse_unseen(path)
        if status is not None and status["mode"] & _GO_DIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        mode = status["mode"] & 0o777 if status is not None else 0o644
        top, missing = (posixpath.dirname(path), []) if status is not None else _parents(client, sandbox_id, path)

        def entry(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
            info = tarfile.TarInfo(posixpath.relpath(name, top))
            info.type, info.mode, info.size, info.uid, info.gid, info.mtime = (
                kind,
                mode,
                size,
                uid,
                gid,
                int(time.time()),
            )
            return info

        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for folder in missing:
                tar.addfile(entry(folder, tarfile.DIRTYPE, 0o755))
            tar.addfile(entry(path, tarfile.REGTYPE, mode, len(data)), io.BytesIO(data))
        client.put_archive(sandbox_id, top, archive.getvalue())


def _check(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"docker: the path {path!r} of a sandbox's file must be absolute")


def _refuse_unseen(path: str) -> None:
    """The engine looks at a container's disk from outside: what is mounted inside is not there."""
    if any(path == top or path.startswith(top + "/") for top in _NOT_ON_DISK):
        raise PermissionError(errno.EPERM, "Docker reaches only what is on the sandbox's disk; use exec", path)


def _ask(method: Callable[..., requests.Response], client: APIClient, sandbox_id: str, path: str, **more: Any) -> Any:
    """The engine's answer about what is at ``path``. Not the SDK's calls, which can't read Podman's headers."""
    url = f"{client.base_url}/v{client.api_version}/containers/{sandbox_id}/archive"
    answer = method(url, params={"path": path}, timeout=client.timeout, **more)
    if _OF_PODMAN not in answer.headers:
        return answer
    if "*" in path:
        answer.close()
        raise PermissionError(errno.EPERM, "Podman finds no path with a * in it; use exec", path)
    if (literal := _OF_PATTERNS.sub(r"\\\g<0>", path)) != path:
        answer.close()  # Podman has taken the path for a pattern
        answer = method(url, params={"path": literal}, timeout=client.timeout, **more)
    return answer


def _stat(client: APIClient, sandbox_id: str, path: str) -> dict[str, Any] | None:
    """What the engine says of a path, without its content; None where there is nothing."""
    answer = _ask(client.head, client, sandbox_id, path)
    if answer.status_code == 404:
        return None
    if answer.status_code >= 400:  # only the answer to GET says why
        _download(client, sandbox_id, path).close()
    # Podman encodes for URLs, and may leave out the padding; decoding takes more padding than it needs.
    encoded = answer.headers["X-Docker-Container-Path-Stat"].translate(_FROM_URL) + "=="
    status: dict[str, Any] = json.loads(base64.b64decode(encoded))
    if _OF_PODMAN in answer.headers:  # it names the path that it has found, as it was asked, for what is no link too
        found = _ESCAPED.sub(r"\1", status["linkTarget"]) if _OF_PATTERNS.search(path) else status["linkTarget"]
        status["linkTarget"] = "" if found == posixpath.normpath(path) else found
    return status


def _download(client: APIClient, sandbox_id: str, path: str) -> requests.Response:
    """A tar of what is at ``path``."""
    from docker.errors import create_api_error_from_http_exception
    from requests import HTTPError

    answer: requests.Response = _ask(client.get, client, sandbox_id, path, stream=True)
    try:
        answer.raise_for_status()
    except HTTPError as exc:
        if "not a directory" in answer.text:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        create_api_error_from_http_exception(exc)
    return answer


def _parents(client: APIClient, sandbox_id: str, path: str) -> tuple[str, list[str]]:
    """The nearest folder above ``path`` that exists, and the folders to make below it, topmost first."""
    missing: list[str] = []
    folder = posixpath.dirname(path)
    while True:
        status = _stat(client, sandbox_id, folder)
        if status is not None:
            break
        if folder == "/":
            raise Unavailable("docker: the engine finds no root folder")  # `inside` finds out that it has ended
        missing.insert(0, folder)
        folder = posixpath.dirname(folder)
    if status["linkTarget"]:
        status = _stat(client, sandbox_id, status["linkTarget"])
    if status is None or not status["mode"] & _GO_DIR:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    return folder, missing


def _content(client: APIClient, sandbox_id: str, path: str) -> bytes:
    status = _stat(client, sandbox_id, path)
    if status is not None and status["linkTarget"]:
        path = status["linkTarget"]
        status = _stat(client, sandbox_id, path)
    _refuse_unseen(path)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if status["mode"] & _GO_DIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    content: bytes | None = None
    with _download(client, sandbox_id, path) as answer:
        chunks = answer.iter_content(1 << 20)
        with tarfile.open(fileobj=cast("IO[bytes]", _Chunks(chunks)), mode="r|") as tar:
            for member in tar:
                if member.size > MOST_READ:
                    why = f"it has more than {MOST_READ >> 20} MiB; take parts of it by a command"
                    raise PermissionError(errno.EFBIG, why, path)
                if (file := tar.extractfile(member)) is not None:
                    content = file.read()
        for _ in chunks:  # a response that is read to its end gives its connection back
            pass
    if content is None:
        raise PermissionError(errno.EPERM, "Only regular files can be read", path)
    return content


def _owner(client: APIClient, sandbox_id: str, info: dict[str, Any]) -> tuple[int, int]:
    """User and group id of the image's user."""
    user, _, group = str(info["Config"].get("User") or "0").partition(":")
    if user.isdigit():
        return int(user), int(group) if group.isdigit() else 0
    try:
        lines = _content(client, sandbox_id, "/etc/passwd").decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    for fields in (line.split(":") for line in lines):
        if fields[0] == user and len(fields) > 3:
            return int(fields[2]), int(group) if group.isdigit() else int(fields[3])
    return 0, 0


class _Chunks:
    """A readable made of the pieces of a response."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = iter(pieces)
        self._buffer = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._buffer += piece
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

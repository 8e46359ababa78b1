"""Images: built once for each content, or pulled once for each host.

A build is named by its content, ``agent-env/<folder>:<digest>``, and the digest is taken over exactly what the engine
is sent: the files that ``.dockerignore`` leaves, with modes, owners and times made alike. So two checkouts of one
content share an image, whatever their umask, and a changed file makes another.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import stat
import tarfile
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from agent_env_core.errors import ConfigError, ImageError, SandboxError
from agent_env_docker.engine import Engine
from agent_env_docker.failure import plain, recognise, translated, words

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

IMAGE_LABEL = "agent-env.image"
_TAIL = 30
_CLASSIC = "agent-env builds with the classic builder: build it yourself, and name the image in the env instead"
_SCHEME = b"agent-env-image-1"  # part of every digest: raise it when what is sent for the same files changes


@dataclass(frozen=True)
class Context:
    """A folder to build from.

    Attributes:
        root: The folder.
        dockerfile: Path of the Dockerfile relative to it, with forward slashes.
        names: Relative paths of everything that is sent, sorted.
    """

    root: Path
    dockerfile: str
    names: tuple[str, ...]

    @classmethod
    def read(cls, root: Path, dockerfile: str) -> Context:
        """Lists what belongs to the context.

        Raises:
            ImageError: The folder or the Dockerfile is missing, or the Dockerfile is outside the folder.
        """
        from docker.utils.build import exclude_paths

        root = root.resolve()
        path = (root / dockerfile).resolve()
        if not root.is_dir():
            raise ImageError(f"docker: there is no folder {root} to build an image from")
        if not path.is_relative_to(root):
            raise ImageError(f"docker: the Dockerfile {path} is outside its context {root}; move it into the context")
        if not path.is_file():
            raise ImageError(f"docker: there is no Dockerfile {path}")
        name = path.relative_to(root).as_posix()
        ignore = root / ".dockerignore"
        try:
            lines = ignore.read_text(encoding="utf-8").splitlines() if ignore.is_file() else []
        except (OSError, UnicodeDecodeError) as exc:
            raise ImageError(f"docker: {ignore} can't be read: {exc}") from exc
        patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        names = cast("Iterable[str]", exclude_paths(str(root), patterns, dockerfile=name))
        return cls(root, name, tuple(sorted(names)))

    @property
    def slug(self) -> str:
        """The folder's name as an image may be called."""
        return re.sub(r"[^a-z0-9]+", "-", self.root.name.lower())[:40].strip("-") or "image"

    def digest(self) -> str:
        """Names the content, in hex.

        Raises:
            ImageError: A file can't be read.
        """
        sink = _Digest()
        self._write(cast("IO[bytes]", sink))
        return sink.hexdigest(self.dockerfile)

    @contextmanager
    def packed(self) -> Iterator[tuple[str, IO[bytes]]]:
        """The tar to send, and the digest of just that: the files may have changed since :meth:`digest`."""
        with tempfile.TemporaryFile() as file:
            sink = _Digest(file)
            self._write(cast("IO[bytes]", sink))
            file.seek(0)
            yield sink.hexdigest(self.dockerfile), file

    def _write(self, sink: IO[bytes]) -> None:
        try:
            with tarfile.open(fileobj=sink, mode="w|", format=tarfile.GNU_FORMAT) as tar:
                for name in self.names:
                    self._add(tar, name)
        except OSError as exc:
            raise ImageError(f"docker: the build context {self.root} can't be read: {exc}") from exc

    def _add(self, tar: tarfile.TarFile, name: str) -> None:
        path = self.root / name
        status = path.lstat()
        info = tarfile.TarInfo(name)
        info.mode = 0o755
        if stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        elif stat.S_ISLNK(status.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = os.readlink(path)
            tar.addfile(info)
        elif stat.S_ISREG(status.st_mode):
            info.mode = 0o755 if status.st_mode & 0o111 else 0o644
            with path.open("rb") as file:
                info.size = os.fstat(file.fileno()).st_size
                tar.addfile(info, file)
        # sockets, pipes and devices are no content


class _Digest:
    """What a tar is written to: hashes it, and keeps it where a file is given."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._hash = hashlib.sha256(_SCHEME)
        self._file = file

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        if self._file is not None:
            self._file.write(data)
        return len(data)

    def hexdigest(self, dockerfile: str) -> str:
        whole = self._hash.copy()
        whole.update(dockerfile.encode())
        return whole.hexdigest()[:16]


async def build(engine: Engine, root: Path, dockerfile: str) -> str:
    """The image of a build context, built where it is not there yet; one process of the machine builds at a time.

    Raises:
        ImageError: It does not build; the message ends with the build's last lines.
    """

    def find(client: APIClient) -> tuple[Context, str, bool]:
        with translated(f"looking for the image of {root}"):
            context = Context.read(root, dockerfile)
            tag = f"agent-env/{context.slug}:{context.digest()}"
            return context, tag, _is_here(client, tag)

    context, tag, here = await engine.call(find)
    if here:
        return tag
    async with _one_at_a_time(tag):
        context, tag, here = await engine.call(find)
        if not here:
            tag = await _abandonable(engine, _Build(engine, context))
    return tag


async def pull(engine: Engine, ref: str) -> str:
    """The id of the image ``ref`` names: the one this engine has, or else the registry's.

    Raises:
        ImageError: There is no such image, or it may not be pulled.
    """

    def find(client: APIClient) -> str | None:
        with translated(f"looking for the image {ref}"):
            return _image_id(client, ref)

    found = await engine.call(find)
    if found is None:
        async with _one_at_a_time(ref):
            found = await engine.call(find) or await _abandonable(engine, _Pull(engine, ref))
    return found


async def command(engine: Engine, prepared: str) -> tuple[str, ...]:
    """ENTRYPOINT and CMD of an image as one argv."""

    def ask(client: APIClient) -> tuple[str, ...]:
        with translated(f"reading the image {prepared}"):
            config = _inspect(client, prepared)["Config"] or {}
            return (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))

    return await engine.call(ask)


class _Work:
    """A build or a pull: long, told of line by line, and cut off where its caller leaves.

    It has a connection of its own. When that closes, the engine drops the work and what it has left lying around.
    """

    def __init__(self, engine: Engine, what: str) -> None:
        self._engine = engine
        self._what = what
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._lock = threading.Lock()
        self._answers: list[Any] = []
        self._abandoned = False

    def run(self, _: APIClient) -> str:
        """Does it, in a thread; returns the image."""
        client = self._engine.connect(1)
        try:
            client.hooks["response"].append(self._answered)
            with translated(self._what):
                return self._work(client)
        finally:
            for answer in self._answers:  # one that was not read to its end holds its connection
                answer.close()
            client.close()

    def abandon(self) -> None:
        """Cuts it off, from another thread."""
        from docker.types import CancellableStream

        with self._lock:
            self._abandoned = True
            for answer in self._answers:
                CancellableStream(iter(()), answer).close()

    def _answered(self, answer: Any, **_: Any) -> None:
        with self._lock:
            self._answers = [answer]

    def _work(self, client: APIClient) -> str:
        raise NotImplementedError

    def _follow(self, events: Iterable[Any]) -> str | None:
        """Reports the engine's events; returns the error they end in, or None."""
        for event in events:
            if self._abandoned:
                break
            if "error" in event:
                return " ".join(str(event["error"]).split())
            for line in plain(str(event.get("stream") or "")).splitlines():
                if line.strip():
                    self._tail.append(line.rstrip())
                    level = logging.INFO if line.lower().startswith("step ") else logging.DEBUG
                    logger.log(level, "%s: %s", self._what, line.rstrip())
        return "it was given up" if self._abandoned else None


class _Build(_Work):
    def __init__(self, engine: Engine, context: Context) -> None:
        super().__init__(engine, f"building {context.slug}")
        self._context = context

    def _work(self, client: APIClient) -> str:
        context = self._context
        with context.packed() as (digest, tar):
            tag = f"agent-env/{context.slug}:{digest}"
            logger.info("building the image %s from %s", tag, context.root)
            events = client.build(
                fileobj=tar,
                custom_context=True,
                dockerfile=context.dockerfile,
                tag=tag,
                labels={IMAGE_LABEL: "1"},
                rm=True,
                forcerm=True,  # or a failed step leaves its container behind
                decode=True,
                use_config_proxy=True,
            )
            if error := self._follow(events):
                raise self._failure(error)
            if not _is_here(client, tag):
                raise self._failure("the engine stopped before its end")
            logger.info("built the image %s", tag)
            return tag

    def _failure(self, error: str) -> SandboxError:
        text = f"docker: {self._context.root / self._context.dockerfile} does not build: {error}"
        if "buildkit" in error.lower() or "unknown flag" in error.lower():
            text += f"; {_CLASSIC}"
        failure = recognise(text, ImageError)
        return ImageError("\n  ".join((text, *self._tail))) if isinstance(failure, ImageError) else failure


class _Pull(_Work):
    def __init__(self, engine: Engine, ref: str) -> None:
        super().__init__(engine, f"pulling the image {ref}")
        self._ref = ref

    def _work(self, client: APIClient) -> str:
        from docker.errors import APIError
        from docker.utils import parse_repository_tag

        repository, tag = parse_repository_tag(self._ref)
        logger.info("pulling the image %s", self._ref)
        try:
            error = self._follow(client.pull(repository, tag=tag or "latest", stream=True, decode=True))
        except APIError as exc:
            error = words(exc)
        found = None if error else _image_id(client, self._ref)
        if found is None:
            text = f"docker: the image {self._ref} is not on this engine and can't be pulled: {error or 'not found'}"
            raise recognise(text, ImageError)
        return found


def _image_id(client: APIClient, ref: str) -> str | None:
    from docker.errors import ImageNotFound, NotFound

    try:
        return str(_inspect(client, ref)["Id"])
    except (ImageNotFound, NotFound):
        return None


def _inspect(client: APIClient, image: str) -> dict[str, Any]:
    info: dict[str, Any] = client.inspect_image(image)  # type: ignore[no-untyped-call]  # a gap in its stubs
    return info


def _is_here(client: APIClient, tag: str) -> bool:
    return _image_id(client, tag) is not None


async def _abandonable(engine: Engine, work: _Work) -> str:
    try:
        return await engine.thread(work.run)
    except asyncio.CancelledError:
        work.abandon()
        raise


@asynccontextmanager
async def _one_at_a_time(what: str) -> AsyncIterator[None]:
    """Holds a lock that all processes of this user on this machine share, one for each image."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-env" / "docker"
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}.lock").open("w")
    except OSError as exc:
        raise ConfigError(f"docker: can't write to {folder} ({exc.strerror}); set XDG_CACHE_HOME to a folder") from exc
    with file:
        pause = 0.01
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # waited for here, not in a thread, so that the wait can be cancelled
                await asyncio.sleep(pause)
                pause = min(0.5, pause * 1.5)
        yield

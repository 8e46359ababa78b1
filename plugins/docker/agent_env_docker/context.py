"""Build contexts: what is sent to the engine, and the name that this content gets."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from agent_env_core.bundle.dockerfile import read_dockerfile
from agent_env_core.errors import ConfigError, ImageError

_SCHEME = b"agent-env-image-2"  # part of every digest: raise it when what is made of the same files changes

REPOSITORY = "agent-env/"
"""What the names of all images begin with that agent-env builds."""


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

    @property
    def path(self) -> Path:
        """The Dockerfile."""
        return self.root / self.dockerfile

    def bases(self) -> tuple[str, ...]:
        """The images that the Dockerfile starts or copies from; none where it can't be read ahead of the engine."""
        try:
            read = read_dockerfile(self.path)
        except ImageError:
            return ()
        stages = {stage.name for stage in read.stages if stage.name} | {str(at) for at in range(len(read.stages))}
        found = [stage.base for stage in read.stages if not stage.from_stage]
        found += [source for step in read.instructions if step.keyword == "COPY" and (source := step.flag("from"))]
        return tuple(sorted({name for name in found if name != "scratch" and name.lower() not in stages}))

    def tag(self, content: str, bases: Mapping[str, str | None], how: str) -> str:
        """The name of the image of this context.

        Args:
            content: What :meth:`digest` said, or :meth:`packed`.
            bases: The ids of the images it starts from, which may change under their names; None for one that the
                engine hasn't got.
            how: Anything else that makes another image of the same content.
        """
        facts = "\n".join([content, how, *(f"{name} {bases[name]}" for name in sorted(bases))])
        return f"{REPOSITORY}{self.slug}:{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

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
        """The tar to send, and the digest of just that: the files may have changed since :meth:`digest`.

        Raises:
            ImageError: A file can't be read.
            ConfigError: There is no room for the tar among this machine's temporary files.
        """
        with _temporary():
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 -- closed below; what is buffered fails there again
        with file:
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
            left = memoryview(data)
            with _temporary():
                while left:
                    left = left[self._file.write(left) :]
        return len(data)

    def hexdigest(self, dockerfile: str) -> str:
        whole = self._hash.copy()
        whole.update(dockerfile.encode())
        return whole.hexdigest()[:16]


@contextmanager
def _temporary() -> Iterator[None]:
    """Tells a failure of the temporary file from one of the files that go into it."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(
            f"docker: the build context does not fit among temporary files: {exc}; free some space at "
            f"{tempfile.tempdir}, or name another folder in TMPDIR"
        ) from exc

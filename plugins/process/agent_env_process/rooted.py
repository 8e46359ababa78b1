"""Files below a folder that stands for ``/``, whatever links there say.

What runs in a sandbox may replace any of its files by a link, and this process has rights that the sandbox hasn't. So
each part of a path is looked up by itself, from the folder before it, and a link is followed inside the root only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_env_core.sandbox.contract import MOST_READ

MOST_LINKS = 40
"""As many as Linux follows for one path."""
MOST_FOLDERS = 200
"""Each holds a descriptor open, of which this process has only so many, and a sandbox can make any number."""

_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Rooted:
    """Reads and writes below a root.

    Args:
        root: The folder that stands for ``/``; ``/proc/PID/root`` is one, with all that is mounted there.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes:
        """A regular file's content.

        Raises:
            FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError: As for a local file; what is
                neither file nor folder can't be read.
        """
        with self._opened(path, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
            if os.fstat(descriptor).st_size > MOST_READ:
                why = f"it has more than {MOST_READ >> 20} MiB; take parts of it by a command"
                raise PermissionError(errno.EFBIG, why, path)
            return file.read(MOST_READ)  # it may be growing

    def write(self, path: str, data: bytes) -> None:
        """Makes a file, and the folders above it, or replaces its content.

        Raises:
            IsADirectoryError, NotADirectoryError, PermissionError: As for a local file.
        """
        with self._opened(path, os.O_WRONLY | os.O_CREAT, make=True) as descriptor:
            os.ftruncate(descriptor, 0)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder."""
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def is_program(self, path: str) -> bool:
        """Whether there is a file that somebody may run."""
        status = self.status(path)
        return status is not None and stat.S_ISREG(status.st_mode) and bool(status.st_mode & 0o111)

    def status(self, path: str) -> os.stat_result | None:
        """What is at ``path``, links followed; None where nothing is."""
        try:
            with self._found(path, make=False) as (folder, name):
                return os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            return None

    @contextmanager
    def _opened(self, path: str, flags: int, *, make: bool = False) -> Iterator[int]:
        with _named(path), self._found(path, make=make) as (folder, name):
            if not name:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            # Not blocking, since a pipe in a file's place would hold this up for ever.
            descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
            try:
                status = os.fstat(descriptor)
                if stat.S_ISDIR(status.st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                if not stat.S_ISREG(status.st_mode) or self._is_kernels(status):
                    raise PermissionError(errno.EPERM, "only regular files on a disk can be read and written", path)
                yield descriptor
            finally:
                os.close(descriptor)

    def _is_kernels(self, status: os.stat_result) -> bool:
        """Whether a file is one of ``/proc``, which shows more to this process than to the sandbox."""
        try:
            kernels = os.lstat(self._root / "proc").st_dev
        except FileNotFoundError:
            return False
        return status.st_dev == kernels != os.stat(self._root).st_dev

    @contextmanager
    def _found(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """The folder that holds what ``path`` means, and its name there: never a link's, and empty for the folder."""
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
        folders = [os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        parts, links, name = deque(path.split("/")), 0, ""
        try:
            while parts:
                part = parts.popleft()
                if part in ("", "."):
                    continue
                if part == "..":
                    if len(folders) > 1:
                        os.close(folders.pop())
                    name = ""
                    continue
                target = _link(part, folders[-1])
                if target is not None:
                    links += 1
                    if links > MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    if target.startswith("/"):
                        while len(folders) > 1:
                            os.close(folders.pop())
                    parts.extendleft(reversed(target.split("/")))
                    continue
                if not any(rest not in ("", ".") for rest in parts):
                    name = part
                    break
                if len(folders) > MOST_FOLDERS:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folders[-1])
                folders.append(os.open(part, _LOOK, dir_fd=folders[-1]))
            yield folders[-1], name
        finally:
            for folder in folders:
                os.close(folder)


def _link(name: str, folder: int) -> str | None:
    """Where a link points; None for anything else, and for nothing."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError as exc:
        if exc.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Puts the path into errors, and those that the contract doesn't know under one that it does."""
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.ETXTBSY):
            raise PermissionError(exc.errno, os.strerror(exc.errno), path) from None
        if exc.filename != path and exc.errno is not None:
            raise OSError(exc.errno, os.strerror(exc.errno), path) from None
        raise

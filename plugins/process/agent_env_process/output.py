"""Where the output of a sandbox's main process goes: bounded on disk."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

LOG_LIMIT = 512 * 1024
"""Bytes after which a log file is put aside; one older file is kept."""


class LogFile:
    """A log that never takes more than twice its limit on disk.

    Args:
        path: The file; the older half is ``path`` with ``.1`` behind it.
        limit: Bytes of one file.
    """

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self._path, self._limit, self._size = path, limit, 0
        self._file: BinaryIO | None = path.open("wb", buffering=0)

    def add(self, data: bytes) -> None:
        """Appends; what comes after :meth:`close`, or doesn't fit on the disk, is dropped."""
        if self._file is None:
            return
        try:
            if self._size + len(data) > self._limit:
                self._file.close()
                self._path.replace(older(self._path))
                self._file, self._size = self._path.open("wb", buffering=0), 0
            self._file.write(data[-self._limit :])
            self._size += len(data)
        except OSError:  # a full disk, or the folder is gone: the sandbox's own trouble must not become ours
            self.close()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        if self._file is not None:
            self._file.close()
        self._file = None


def older(path: Path) -> Path:
    """Where the older half of a log is."""
    return path.with_name(path.name + ".1")


def tail(path: Path, lines: int = 20, width: int = 4000) -> str:
    """The end of a log, at most ``lines`` lines and ``width`` characters; empty where there is none."""
    data = b""
    for part in (older(path), path):
        try:
            data += part.read_bytes()
        except OSError:
            continue
    return "\n".join(data.decode(errors="replace").rstrip().splitlines()[-lines:])[-width:]

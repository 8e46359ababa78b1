"""A digest of what a build context holds, for providers that cache what they prepare."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from agent_env_core.bundle.names import is_leaving

_SCHEME = 1


def context_digest(context: Path, dockerfile: str = "Dockerfile") -> str:
    """A text that is equal for build contexts of equal content, on any machine: ``sha256:`` and 64 hex digits.

    It covers every file's name, content, and whether it may be executed; folders; and links by what they say, since a
    builder copies links as links. Owners, times and what operating systems leave behind (``.DS_Store``,
    ``__pycache__``) don't count. ``.dockerignore`` is not honoured: a change in an ignored file gives another digest,
    so a cache may build once too often, and never serves what is stale.

    Args:
        context: The folder.
        dockerfile: Which of its files is built; part of the digest.

    Raises:
        OSError: A file can't be read.
    """
    digest = hashlib.sha256(json.dumps([_SCHEME, dockerfile]).encode())
    for entry in sorted(_entries(context)):
        digest.update(json.dumps(entry).encode())
    return f"sha256:{digest.hexdigest()}"


def _entries(context: Path) -> Iterator[tuple[str, str, str]]:
    """Name, kind, and content of all that lies in a folder; no two have one name."""
    waiting = [("", os.fspath(context))]
    while waiting:
        inside, path = waiting.pop()
        with os.scandir(path) as items:
            for item in items:
                name = inside + item.name
                if is_leaving(item.name):
                    continue
                if item.is_symlink():
                    yield name, "link", os.readlink(item.path)
                elif item.is_dir(follow_symlinks=False):
                    yield name, "folder", ""
                    waiting.append((f"{name}/", item.path))
                elif item.is_file(follow_symlinks=False):
                    with open(item.path, "rb") as file:
                        content = hashlib.file_digest(file, "sha256").hexdigest()
                        runs = os.fstat(file.fileno()).st_mode & 0o111
                    yield name, "program" if runs else "file", content
                else:
                    yield name, "other", ""

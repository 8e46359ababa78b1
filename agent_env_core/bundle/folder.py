"""The bundle's folder, read safely: nothing outside it is ever opened, and odd files become problems, not crashes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agent_env_core.bundle.config import MAX_BYTES, Problems
from agent_env_core.bundle.names import fold, is_leaving, is_text, show

#: More than this in one entity is a folder that was not meant to be there, or links that multiply each other.
MAX_ENTRIES = 100_000
_LOOP = ("is a link to a folder that holds it, so it never ends", "remove it")


@dataclass(frozen=True)
class Entry:
    """Something in the bundle's folder.

    Attributes:
        name: Its name as the disk has it.
        rel: Its path from the bundle's root, POSIX, following the names and not the links.
        path: Its absolute path.
        sort: What it is. A ``link`` has not been followed; a ``dir`` or ``file`` may be one that was.
        through_link: Whether it is a link that was followed.
    """

    name: str
    rel: str
    path: str
    sort: Literal["dir", "file", "link", "other"]
    through_link: bool = False

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.sort == "dir"


class Folder:
    """Lists and reads what is under the bundle's root.

    Args:
        root: The bundle's folder, absolute and free of symlinks.
        problems: Where to note what can't be read.
    """

    def __init__(self, root: Path, problems: Problems) -> None:
        self.root = root
        self.problems = problems
        self._root = str(root)
        self._prefix = self._root.rstrip(os.sep) + os.sep

    def scan(self, rel: str, path: str) -> list[Entry]:
        """What is directly in a folder, by name, with links as they are and without what operating systems leave.

        Args:
            rel: The folder's path from the root; empty for the root itself.
            path: Its absolute path.
        """
        found = []
        try:
            with os.scandir(path) as items:
                for item in items:
                    where = f"{rel}/{item.name}" if rel else item.name
                    if not is_leaving(item.name):
                        found.append(Entry(item.name, where, item.path, _sort(item)))
        except OSError as exc:
            self.problems.add(show(rel) or ".", f"can't be listed: {exc.strerror or exc}")
        found.sort(key=lambda entry: entry.name)
        return found

    def entries(self, rel: str, path: str) -> list[Entry]:
        """The files and folders directly in a folder, by name; see :meth:`settle` for links and oddities."""
        return [settled for entry in self.scan(rel, path) if (settled := self.settle(entry))]

    def settle(self, entry: Entry) -> Entry | None:
        """The file or folder that an entry stands for; None with a problem noted where it stands for neither.

        Links are followed while they stay inside the bundle. A name that is not UTF-8, a broken link, one that leaves
        the bundle or leads to a folder that holds it, a socket and the like are problems.
        """
        place = show(entry.rel)
        if not is_text(entry.name):
            self.problems.add(place, "has a name that isn't UTF-8", "rename it")
        elif entry.sort == "link":
            return self._follow(entry, place)
        elif entry.sort == "other":
            self.problems.add(place, "is neither a file nor a folder", "remove it")
        else:
            return entry
        return None

    def _follow(self, entry: Entry, place: str) -> Entry | None:
        fix = "put a copy of what it names in its place, or move it out of the bundle"
        try:
            target = os.path.realpath(entry.path, strict=True)
            mode = os.stat(target).st_mode
        except (OSError, ValueError, RecursionError):
            self.problems.add(place, "is a link that leads nowhere", fix)
            return None
        if target != self._root and not target.startswith(self._prefix):
            self.problems.add(place, "is a link that leaves the bundle", fix)
        elif stat.S_ISREG(mode):
            return replace(entry, sort="file", through_link=True)
        elif not stat.S_ISDIR(mode):
            self.problems.add(place, "is a link to something that is neither a file nor a folder", "remove it")
        elif f"{os.path.realpath(os.path.dirname(entry.path))}{os.sep}".startswith(target.rstrip(os.sep) + os.sep):
            self.problems.add(place, *_LOOP)
        else:
            return replace(entry, sort="dir", through_link=True)
        return None

    def content(self, top: Entry) -> list[Entry]:
        """Every file below a folder, in order of paths; links to folders inside the bundle are followed."""
        files: list[Entry] = []
        for count, entry in enumerate(self._walk(top)):
            if count >= MAX_ENTRIES:
                fix = "move out of the bundle what isn't needed, and mind links to folders: they multiply content"
                self.problems.add(show(top.rel), f"holds more than {MAX_ENTRIES:,} files and folders", fix)
                break
            if not entry.is_dir:
                files.append(entry)
        files.sort(key=lambda entry: entry.rel)
        return files

    def _walk(self, top: Entry) -> Iterator[Entry]:
        waiting: list[tuple[Entry, tuple[str, ...]]] = [(top, (os.path.realpath(top.path),))]
        while waiting:
            folder, holders = waiting.pop()
            for entry in self.entries(folder.rel, folder.path):
                yield entry
                if not entry.is_dir:
                    continue
                real = os.path.realpath(entry.path) if entry.through_link else os.path.join(holders[-1], entry.name)
                if real in holders:
                    self.problems.add(show(entry.rel), *_LOOP)
                else:
                    waiting.append((entry, (*holders, real)))

    def read(self, entry: Entry, *, skip_large: bool = False, problems: Problems | None = None) -> bytes | None:
        """A file's bytes; None with a problem noted where that can't be.

        Args:
            entry: The file.
            skip_large: Whether a file past the limit of config files is passed over without a problem.
            problems: Where to note it, when it isn't a matter of the whole bundle.
        """
        problems = self.problems if problems is None else problems
        place = show(entry.rel)
        try:
            # O_NONBLOCK: were it swapped for a pipe after it was listed, opening it must not wait for a writer.
            handle = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    problems.add(place, "is not a regular file")
                    return None
                if status.st_size <= MAX_BYTES:
                    with open(handle, "rb", buffering=0, closefd=False) as file:
                        return file.read(MAX_BYTES + 1)
            finally:
                os.close(handle)
        except OSError as exc:
            problems.add(place, f"can't be read: {exc.strerror or exc}")
            return None
        if not skip_large:
            limit = MAX_BYTES // (1024 * 1024)
            problems.add(place, f"is {status.st_size:,} bytes long, and {limit} MiB is the limit")
        return None

    def exact(self, entries: list[Entry], names: tuple[str, ...]) -> list[Entry]:
        """Notes entries that are one of ``names`` in another case; reading goes on as if they were spelled right."""
        right = {fold(name): name for name in names}
        there = {entry.name for entry in entries}
        kept = []
        for entry in entries:
            want = right.get(fold(entry.name), entry.name)
            if want == entry.name:
                kept.append(entry)
            elif want in there:
                message = f"stands beside {want}, which differs only by case"
                self.problems.add(show(entry.rel), message, "remove one of them")
            else:
                self.problems.add(show(entry.rel), f"is spelled in another case than {want}", f"rename it to {want}")
                kept.append(replace(entry, name=want))
        return kept

    def collide(self, entries: list[Entry]) -> None:
        """Notes entries that a file system which ignores case can't hold side by side."""
        first: dict[str, Entry] = {}
        for entry in entries:
            other = first.setdefault(fold(entry.name), entry)
            if other is not entry:
                message = f"and {show(other.name)} are one name where case doesn't count"
                self.problems.add(show(entry.rel), message, "rename one of them")


def _sort(item: os.DirEntry[str]) -> Literal["dir", "file", "link", "other"]:
    if item.is_symlink():
        return "link"
    if item.is_dir(follow_symlinks=False):
        return "dir"
    return "file" if item.is_file(follow_symlinks=False) else "other"

"""The build context: which of its files a COPY means, as Docker decides it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent_env_process.files import copy_file


class CopyFault(ValueError):
    """A COPY that can't be carried out; the caller knows its line."""


@dataclass(frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    keep: bool


class Context:
    """A folder, less what its ``.dockerignore`` leaves out.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        ignore = root / ".dockerignore"
        self._rules = _rules(ignore.read_text(encoding="utf-8", errors="replace")) if ignore.is_file() else []

    def ignored(self, path: str) -> bool:
        """Whether ``path``, relative to the root, is left out: the last rule that fits it or a folder above it says."""
        parts = PurePosixPath(path).parts
        above = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        left_out = False
        for rule in self._rules:
            if any(rule.pattern.fullmatch(name) for name in above):
                left_out = not rule.keep
        return left_out

    def matches(self, source: str) -> list[str]:
        """The paths, relative to the root, that one source of a COPY means; ``.`` is the whole context.

        Raises:
            CopyFault: There is none, or it lies outside.
        """
        clean = os.path.normpath(source.lstrip("/") or ".").replace(os.sep, "/")
        if clean == ".." or clean.startswith("../"):
            raise CopyFault(f"{source!r} lies outside the build context")
        found = [clean]
        if any(mark in clean for mark in "*?["):
            found = sorted(path.relative_to(self.root).as_posix() for path in self.root.glob(clean))
        found = [path for path in found if os.path.lexists(self.root / path) and not self.ignored(path)]
        if not found:
            raise CopyFault(f"{source!r} is not in the build context {self.root} (or .dockerignore leaves it out)")
        return found

    def files(self, path: str) -> Iterator[str]:
        """Everything below ``path`` in a stable order, folders before what is in them, ``path`` itself first."""
        place = self.root / path
        if path != ".":
            yield path
        if not place.is_dir() or (place.is_symlink() and path != "."):
            return
        for name in sorted(os.listdir(place)):
            inner = name if path == "." else f"{path}/{name}"
            below = (self.root / inner).is_dir() and not (self.root / inner).is_symlink()
            if not self.ignored(inner):
                yield from self.files(inner)
            elif below and any(rule.keep for rule in self._rules):  # a rule may bring back something further down
                yield from (file for file in self.files(inner) if not self.ignored(file))

    def digest(self, path: str) -> str:
        """Says whether anything below ``path`` changed: names, links, modes and contents."""
        total = hashlib.sha256()
        for name in self.files(path):
            place = self.root / name
            facts = place.lstat()
            total.update(f"\0{name}\0{facts.st_mode:o}\0".encode())
            if place.is_symlink():
                total.update(os.readlink(place).encode())
            elif place.is_file():
                with place.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()

    def copy(self, path: str, target: Path) -> None:
        """Copies a file to ``target``, or what is in a folder into it."""
        source = self.root / path
        if not source.is_dir():
            if not source.resolve().is_relative_to(self.root.resolve()):
                raise CopyFault(f"{path!r} is a link out of the build context")
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, target)
            return
        target.mkdir(parents=True, exist_ok=True)
        for name in self.files(path):
            place = self.root / name
            inner = target / os.path.relpath(name, path)
            if name == path:
                continue
            if place.is_symlink():
                inner.unlink(missing_ok=True)
                inner.parent.mkdir(parents=True, exist_ok=True)
                inner.symlink_to(os.readlink(place))
            elif place.is_dir():
                inner.mkdir(parents=True, exist_ok=True)
            elif place.is_file():
                inner.parent.mkdir(parents=True, exist_ok=True)
                copy_file(place, inner)


def _rules(text: str) -> list[_Rule]:
    rules = []
    for line in text.splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        keep = pattern.startswith("!")
        clean = os.path.normpath(pattern.removeprefix("!").strip().strip("/") or ".")
        rules.append(_Rule(re.compile(_expression(clean)), keep))
    return rules


def _expression(pattern: str) -> str:
    """A ``.dockerignore`` pattern as a regular expression: ``*`` and ``?`` stay within a name, ``**`` goes across."""
    if pattern == ".":
        return ".*"
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "[" and "]" in pattern[at + 2 :]:
            end = pattern.index("]", at + 2) + 1
            out, at = out + pattern[at:end].replace("\\", "\\\\"), end
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(pattern[at]) or re.escape(pattern[at])
            at += 1
    return out

"""Container paths on a machine without containers.

An image's tree lies in a folder of its own, so ``/app`` of the Dockerfile is ``…/root/app`` here. Paths that the image
brought are rewritten where they are plain text: in commands, arguments and environment values. A path that only the
program's code knows is not seen, and means the machine's own.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

#: Folders that every image and every machine have: what is copied *into* one is the image's, the folder itself is not.
SYSTEM = frozenset({
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr", "/usr/bin",
    "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/etc", "/usr/local/lib", "/usr/local/share", "/usr/sbin",
    "/usr/share", "/usr/src", "/var", "/var/lib", "/var/log",
})  # fmt: skip

LOCAL_PROGRAMS = ("/usr/local/bin/", "/usr/bin/")
"""Where an image keeps its Python; here it is the environment's ``bin``."""


def absolute(path: str, base: str = "/") -> str:
    """``path`` as a clean absolute container path."""
    return posixpath.normpath("/" + posixpath.join(base, path).lstrip("/"))


@dataclass(frozen=True)
class PathMap:
    """Where container paths are on this machine.

    Attributes:
        root: The folder that stands for ``/``.
        owned: Container paths that the image brought.
        bin: The image's Python programs.
    """

    root: Path
    owned: tuple[str, ...]
    bin: Path | None = None

    def host(self, path: str) -> Path:
        """The place of an absolute container path, always below ``root``.

        Raises:
            ValueError: The path is not absolute.
        """
        if not path.startswith("/"):
            raise ValueError(f"{path!r} is not an absolute path")
        return self.root / absolute(path)[1:]

    def text(self, text: str) -> str:
        """``text`` with every owned path in it rewritten."""
        return self._pattern.sub(lambda found: f"{self.root}{found[0]}", text) if self._pattern else text

    def argument(self, text: str) -> str:
        """One element of a command: a path that exists below ``root``, a program of the image, or any text."""
        if text.startswith("/") and "\0" not in text:
            if text != "/" and os.path.lexists(self.host(text)):
                return str(self.host(text))
            if self.bin is not None and text.startswith(LOCAL_PROGRAMS):
                program = self.bin / posixpath.basename(text)
                if program.exists():
                    return str(program)
        return self.text(text)

    def command(self, argv: Iterable[str]) -> list[str]:
        """A command with every element rewritten."""
        return [self.argument(part) for part in argv]

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        if not self.owned:
            return None
        longest_first = sorted(self.owned, key=len, reverse=True)
        paths = "|".join(re.escape(path) for path in longest_first)
        # A path starts after white space, a quote, '=' or ':' and the like, never inside a word, URL or other path.
        return re.compile(rf"(?<![\w./~-])(?:{paths})(?![\w.-])")

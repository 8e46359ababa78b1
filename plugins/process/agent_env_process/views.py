"""How a sandbox's files and commands look from this machine, with namespaces of its own and without."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from agent_env_process.cells import enter_command, run_command
from agent_env_process.images import PreparedImage
from agent_env_process.paths import LOCAL_PROGRAMS, PathMap, absolute
from agent_env_process.procs import Known
from agent_env_process.rooted import Rooted
from agent_env_process.spawn import find_program

CANNOT_RUN, NOT_FOUND = 126, 127


class CannotRun(Exception):
    """A command that can't be started, for a reason that a shell would give."""

    def __init__(self, code: int, why: str) -> None:
        self.code, self.why = code, why
        super().__init__(why)


class View(Protocol):
    """What a sandbox's processes see."""

    home: str
    temporary: str

    @property
    def files(self) -> Rooted:
        """Its files, from here."""

    def text(self, value: str) -> str:
        """A value as its processes understand it."""

    def folder(self, path: str) -> str:
        """A working folder's path as its processes understand it."""

    def search_path(self, container: str) -> str:
        """A container's ``PATH``."""

    def command(self, argv: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[list[str], Path]:
        """What to start here so that ``argv`` runs there, and the folder to start it in.

        Args:
            argv: The command.
            env: Its whole environment.
            folder: Its working folder; absolute.

        Raises:
            CannotRun: There is no such folder or program.
        """


class SharedView:
    """Without namespaces: container paths are rewritten to where the sandbox's folder is.

    Args:
        root: The folder that stands for ``/``.
        image: What the sandbox was made from.
        groups: The control groups of its processes.
    """

    def __init__(self, root: Path, image: PreparedImage, groups: Sequence[str] = ()) -> None:
        self._paths, self._image, self._groups = PathMap(root, image.owned, image.bin), image, groups
        self.home, self.temporary = str(root / "root"), str(root / "tmp")

    @property
    def files(self) -> Rooted:
        """See :class:`View`."""
        return Rooted(self._paths.root)

    def text(self, value: str) -> str:
        """See :class:`View`: every path that the image brought is rewritten."""
        return self._paths.text(value)

    def folder(self, path: str) -> str:
        """See :class:`View`: the sandbox's, or the machine's where the sandbox has none of that name."""
        place = self._paths.host(path)
        return str(place) if place.is_dir() else path

    def search_path(self, container: str) -> str:
        """See :class:`View`: the image's own folders, its Python, then the machine's programs.

        The folder of the Python that runs this stays out, so that its packages' commands don't stand in for missing
        ones.
        """
        ours = {Path(sys.prefix) / "bin", Path(sys.executable).parent}
        programs = str(self._image.bin)
        found: list[str] = []
        for part in container.split(":"):
            if part.startswith("/") and (self._image.tree / part[1:]).is_dir():
                found.append(str(self._paths.host(part)))
            if part == "/usr/local/bin":
                found.append(programs)
        if programs not in found:
            found.insert(0, programs)
        machine = [part for part in os.environ.get("PATH", os.defpath).split(os.pathsep) if part]
        found += [part for part in machine if Path(part) not in ours]
        return ":".join(dict.fromkeys(found))

    def command(self, argv: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[list[str], Path]:
        """See :class:`View`."""
        place = Path(folder)
        if not place.is_dir():
            raise CannotRun(CANNOT_RUN, f"there is no folder {folder}")
        words = self._paths.command(argv)
        program = find_program(words[0], env["PATH"], place)
        if program is None:
            raise CannotRun(NOT_FOUND, f"there is no program {argv[0]}")
        return run_command([program, *words[1:]], self._groups), place


class CellView:
    """With namespaces: paths are what they are.

    Args:
        holder: The process that holds them; None while there are none yet.
        image: What the sandbox was made from.
        pids: See :func:`agent_env_process.cells.enter_command`.
        groups: The control groups of its processes.
    """

    home, temporary = "/root", "/tmp"  # noqa: S108 - the sandbox's own

    def __init__(self, holder: Known | None, image: PreparedImage, pids: int = 0, groups: Sequence[str] = ()) -> None:
        self._holder, self._image, self._pids, self._groups = holder, image, pids, groups

    @property
    def holder(self) -> Known:
        """The process that holds the namespaces.

        Raises:
            ProcessLookupError: They aren't open yet.
        """
        if self._holder is None:
            raise ProcessLookupError("its namespaces aren't open")
        return self._holder

    @property
    def files(self) -> Rooted:
        """See :class:`View`."""
        return Rooted(Path(f"/proc/{self.holder.pid}/root"))

    def text(self, value: str) -> str:
        """See :class:`View`."""
        return value

    def folder(self, path: str) -> str:
        """See :class:`View`."""
        return absolute(path)

    def search_path(self, container: str) -> str:
        """See :class:`View`: the image's Python stands where images keep theirs."""
        found: list[str] = []
        for part in container.split(":"):
            if part == "/usr/local/bin":
                found.append(str(self._image.bin))
            found.append(part)
        if str(self._image.bin) not in found:
            found.insert(0, str(self._image.bin))
        return ":".join(dict.fromkeys(found))

    def command(self, argv: Sequence[str], env: Mapping[str, str], folder: str) -> tuple[list[str], Path]:
        """See :class:`View`."""
        files = self.files
        if not files.is_folder(folder):
            raise CannotRun(CANNOT_RUN, f"there is no folder {folder}")
        words = [self._word(part) for part in argv]
        name = words[0]
        if "/" in name:
            places = [posixpath.join(folder, name)]
        else:
            places = [posixpath.join(folder, part, name) for part in env["PATH"].split(":")]
        if not any(files.is_program(place) for place in places):
            there = "/" in name and files.status(places[0]) is not None
            if not there:
                raise CannotRun(NOT_FOUND, f"there is no program {argv[0]}")
        return enter_command(self.holder, folder, words, pids=self._pids, groups=self._groups), Path("/")

    def _word(self, text: str) -> str:
        """Of the programs in ``/usr/local/bin``, the image's own stand before the machine's."""
        if text.startswith(LOCAL_PROGRAMS):
            program = self._image.bin / posixpath.basename(text)
            if program.exists():
                return str(program)
        return text

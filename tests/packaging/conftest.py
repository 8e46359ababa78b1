"""Wheels of every distribution, and fresh environments to install them into, outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
UV = [sys.executable, "-m", "uv", "--quiet", "--no-cache"]


@dataclass(frozen=True)
class Source:
    """A distribution of ours as its folder declares it.

    Attributes:
        name: Its name.
        folder: Where its ``pyproject.toml`` is.
        project: The table ``project`` of that file.
        packages: The import packages it brings, by top-level name.
    """

    name: str
    folder: Path
    project: dict[str, Any]
    packages: tuple[str, ...]

    def modules(self) -> dict[str, Path]:
        """Every module of it, by dotted name, with its file."""
        files = [file for package in self.packages for file in sorted((self.folder / package).rglob("*.py"))]
        parts = {file: file.relative_to(self.folder).with_suffix("").parts for file in files}
        return {".".join(p[:-1] if p[-1] == "__init__" else p): file for file, p in parts.items()}


def read_source(folder: Path) -> Source:
    """Reads the ``pyproject.toml`` in ``folder``."""
    document = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    packages = document["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return Source(document["project"]["name"], folder, document["project"], tuple(packages))


SOURCES = {
    source.name: source
    for source in map(read_source, [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))])
}


def clean_environment() -> dict[str, str]:
    """This process's environment without what would let Python find modules of this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


class Environment:
    """A virtual environment; its commands run in an empty folder outside the repository."""

    def __init__(self, folder: Path, wheels: Path, *, borrowed: Path | None) -> None:
        self.folder = folder / "venv"
        self._elsewhere = folder / "elsewhere"
        self._elsewhere.mkdir()
        self._wheels = wheels
        venv.create(self.folder, with_pip=borrowed is None, symlinks=True)
        self.python = self.folder / "bin" / "python"
        self.site = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        if borrowed is not None:
            (self.site / "borrowed.pth").write_text(f"{borrowed}\n")

    def run(self, *arguments: str) -> str:
        """Runs this environment's Python and returns what it prints."""
        return self._call([str(self.python), *arguments])

    def program(self, name: str, *arguments: str) -> str:
        """Runs a script that an installed distribution brought, and returns what it prints."""
        return self._call([str(self.folder / "bin" / name), *arguments])

    def install(self, *arguments: str | Path) -> str:
        """Installs distributions of ours without what they depend on."""
        return self.uv("--no-deps", "--no-index", "--no-build-isolation", "--find-links", self._wheels, *arguments)

    def uv(self, *arguments: str | Path) -> str:
        """Installs by uv: pip takes ten times as long for the same."""
        return self._call([*UV, "pip", "install", "--python", str(self.python), *map(str, arguments)])

    def _call(self, command: Sequence[str]) -> str:
        done = subprocess.run(
            command, cwd=self._elsewhere, env=clean_environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of every distribution of ours, built now."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in SOURCES.values():
        command = [*UV, "build", "--wheel", "--no-build-isolation", "--python", sys.executable]
        command += ["--out-dir", str(folder), str(source.folder)]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{source.name} doesn't build:\n{done.stdout}\n{done.stderr}"
    return folder


@pytest.fixture(scope="session")
def borrowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third-party packages of the testing environment as links, and nothing of ours: quicker than installing."""
    folder = tmp_path_factory.mktemp("borrowed") / "site-packages"  # by this name dill knows what is installed
    folder.mkdir()
    ours = {source.name.replace("-", "_") for source in SOURCES.values()}
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        name = path.name.partition("-")[0].lower()
        if name not in ours and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def environment(tmp_path: Path, wheels: Path, borrowed: Path) -> Environment:
    """An environment with every third-party package and nothing of ours."""
    return Environment(tmp_path, wheels, borrowed=borrowed)


@pytest.fixture
def bare_environment(tmp_path: Path, wheels: Path) -> Environment:
    """An environment with pip and nothing else."""
    return Environment(tmp_path, wheels, borrowed=None)


@pytest.fixture
def sources() -> dict[str, Source]:
    """Every distribution of ours, by name."""
    return SOURCES


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Source:
    """Each distribution of ours in turn."""
    return SOURCES[request.param]

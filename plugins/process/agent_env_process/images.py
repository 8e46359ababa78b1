"""The cache on disk: prepared images and the Python environments they use, each named after what it was made from."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_env_core.errors import ImageError
from agent_env_process.paths import PathMap

FACTS = "image.json"
ENVIRONMENT_FACTS = "environment.json"
"""Written last, in one step: a folder without it is a build that did not finish. Its age is that of the last use."""


@dataclass(frozen=True)
class Environment:
    """A Python environment that images can share.

    Attributes:
        key: Its name in the cache.
        folder: Its folder in the cache.
        size: Bytes on disk.
    """

    key: str
    folder: Path
    size: int = 0

    @property
    def venv(self) -> Path:
        """The virtual environment itself."""
        return self.folder / "venv"

    def save(self) -> None:
        """Writes the facts, which makes it usable."""
        _write(self.folder / ENVIRONMENT_FACTS, {"size": self.size})

    def touch(self) -> None:
        """Notes that it is used now."""
        _touch(self.folder / ENVIRONMENT_FACTS)


@dataclass(frozen=True)
class PreparedImage:
    """An image that sandboxes can start from.

    Attributes:
        ref: Its name in the cache, which ``SandboxSpec.image`` holds.
        folder: Its folder in the cache.
        workdir: Container path of the working folder.
        env: Environment that the Dockerfile sets, container paths as written.
        command: The Dockerfile's own start command; empty without one.
        owned: Container paths that the image brought.
        venv: Its Python environment, which may serve other images too.
        prefix: Where the Python behind that is installed on this machine.
        size: Bytes on disk, without the environment.
    """

    ref: str
    folder: Path
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    venv: Path = Path()
    prefix: str = ""
    size: int = 0

    @property
    def tree(self) -> Path:
        """The files that were copied in, under their container paths. Every sandbox gets a copy."""
        return self.folder / "tree"

    @property
    def bin(self) -> Path:
        """The programs of the Python environment."""
        return self.venv / "bin"

    def paths(self, root: Path) -> PathMap:
        """Where this image's container paths are, for a sandbox whose ``/`` is ``root``."""
        return PathMap(root, self.owned, self.bin)

    def save(self) -> None:
        """Writes the facts, which makes the image usable."""
        _write(self.folder / FACTS, asdict(self) | {"folder": None, "venv": str(self.venv)})

    def touch(self) -> None:
        """Notes that it is used now, and with it its environment."""
        _touch(self.folder / FACTS)
        _touch(self.venv.parent / ENVIRONMENT_FACTS)


class ImageCache:
    """The folder of prepared images.

    Args:
        folder: Where; may be shared by all processes of a user.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environments = folder / "environments"

    def place(self, ref: str) -> Path:
        """The folder of an image, whether or not it is there."""
        return self.folder / ref

    def environment_place(self, key: str) -> Path:
        """The folder of an environment, whether or not it is there."""
        return self.environments / key

    @staticmethod
    def lock(place: Path) -> Path:
        """The file that is locked by whoever makes or removes what is in ``place``."""
        return place.with_name(f"{place.name}.lock")

    def find(self, ref: str) -> PreparedImage | None:
        """A prepared image; None where it, or its environment, isn't there or isn't finished."""
        try:
            facts: dict[str, Any] = json.loads((self.place(ref) / FACTS).read_text(encoding="utf-8"))
            facts |= {"folder": self.place(ref), "command": tuple(facts["command"]), "owned": tuple(facts["owned"])}
            image = PreparedImage(**facts | {"venv": Path(facts["venv"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return image if (image.venv.parent / ENVIRONMENT_FACTS).is_file() else None

    def find_environment(self, key: str) -> Environment | None:
        """An environment; None where it isn't there or isn't finished."""
        place = self.environment_place(key)
        try:
            facts: dict[str, Any] = json.loads((place / ENVIRONMENT_FACTS).read_text(encoding="utf-8"))
            return Environment(key, place, int(facts["size"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def get(self, ref: str) -> PreparedImage:
        """A prepared image, to be used now.

        Raises:
            ImageError: There is none of that name; ``prepare`` makes one.
        """
        image = self.find(ref) if ref.isalnum() else None
        if image is None:
            raise ImageError(f"process: there is no prepared image {ref!r} in {self.folder}; prepare it first")
        image.touch()
        return image

    def images(self) -> Iterator[PreparedImage]:
        """All that are finished."""
        for name in _names(self.folder):
            if name.isalnum() and (image := self.find(name)) is not None:
                yield image

    def all_environments(self) -> Iterator[Environment]:
        """All that are finished."""
        for name in _names(self.environments):
            if (environment := self.find_environment(name)) is not None:
                yield environment


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _touch(facts: Path) -> None:
    with contextlib.suppress(OSError):  # of another user, or just removed
        os.utime(facts)


def _write(path: Path, facts: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    os.replace(part, path)

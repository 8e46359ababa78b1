"""Prepared images: folders in a cache, each named after what it was made from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_env_core.errors import ImageError
from agent_env_process.paths import PathMap

FACTS = "image.json"
"""Written last, in one step: a folder without it is a build that did not finish."""


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
    """

    ref: str
    folder: Path
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()

    @property
    def tree(self) -> Path:
        """The files that were copied in, under their container paths. Every sandbox gets a copy."""
        return self.folder / "tree"

    @property
    def bin(self) -> Path:
        """The programs of the Python environment, which all sandboxes of the image share."""
        return self.folder / "venv" / "bin"

    def paths(self, root: Path) -> PathMap:
        """Where this image's container paths are, for a sandbox whose ``/`` is ``root``."""
        return PathMap(root, self.owned, self.bin)

    def save(self) -> None:
        """Writes the facts, which makes the image usable."""
        facts = asdict(self) | {"folder": None}
        part = self.folder / f"{FACTS}.part"
        part.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        os.replace(part, self.folder / FACTS)


class ImageCache:
    """The folder of prepared images.

    Args:
        folder: Where; may be shared by all processes of a user.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def place(self, ref: str) -> Path:
        """The folder of an image, whether or not it is there."""
        return self.folder / ref

    def find(self, ref: str) -> PreparedImage | None:
        """A prepared image; None where it isn't, or isn't finished."""
        try:
            facts: dict[str, Any] = json.loads((self.place(ref) / FACTS).read_text(encoding="utf-8"))
            facts |= {"folder": self.place(ref), "command": tuple(facts["command"]), "owned": tuple(facts["owned"])}
            return PreparedImage(**facts)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def get(self, ref: str) -> PreparedImage:
        """A prepared image.

        Raises:
            ImageError: There is none of that name; ``prepare`` makes one.
        """
        image = self.find(ref) if ref.isalnum() else None
        if image is None:
            raise ImageError(f"process: there is no prepared image {ref!r} in {self.folder}; prepare it first")
        return image

"""Bundles that Python distributions bring, found without importing anything of theirs.

A distribution names a bundle in the entry-point group ``agent_env.bundles``: the entry's name is the bundle's, and its
value the package that holds the folder ``<package>/<bundle>/``. The ids of such a bundle don't depend on where it lies:
they begin with ``@local/<distribution>/<bundle>``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from agent_env_core.bundle.ids import PREFIX
from agent_env_core.bundle.names import listed, nearest, nfc, quote, show
from agent_env_core.errors import BundleError, Problem

GROUP = "agent_env.bundles"


@dataclass(frozen=True, order=True)
class InstalledBundle:
    """A bundle as its distribution announces it.

    Attributes:
        name: The bundle's name.
        distribution: Who brings it, as package indexes spell it: lower case, with hyphens.
        package: The package that holds its folder.
    """

    name: str
    distribution: str
    package: str

    @property
    def id_root(self) -> str:
        """What the ids of its entities begin with."""
        return nfc(f"{PREFIX}{self.distribution}/{self.name}")

    @property
    def title(self) -> str:
        """The name that means this bundle and no other."""
        return f"{self.distribution}/{self.name}"

    def folder(self) -> Path | None:
        """Its folder; None where the package or the folder in it isn't there. Nothing is imported."""
        folders = (Path(place) / self.name for place in _locations(self.package))
        return next((folder for folder in folders if folder.is_dir()), None)


def _locations(package: str) -> Iterable[str]:
    """The folders of a package, asked of the import system's finders, parents first and without running any."""
    places: Iterable[str] | None = None
    parts = package.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        specs = (finder.find_spec(name, places) for finder in sys.meta_path)  # type: ignore[arg-type]  # a list or path
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.submodule_search_locations is None:
            return ()
        places = list(spec.submodule_search_locations)
    return places or ()


@cache
def installed_bundles() -> tuple[InstalledBundle, ...]:
    """Every bundle of this Python's distributions, in order of names."""
    found = set()
    for point in metadata.entry_points(group=GROUP):
        owner = re.sub(r"[-_.]+", "-", point.dist.metadata["Name"]).lower() if point.dist else "unknown"
        found.add(InstalledBundle(point.name, owner, point.value.partition(":")[0].strip()))
    return tuple(sorted(found))


def conflict(bundle: InstalledBundle) -> str:
    """Why an installed bundle can't be told from another of its distribution, or an empty text."""
    packages = sorted(one.package for one in installed_bundles() if one.title == bundle.title)
    if len(packages) < 2:
        return ""
    return f"the distribution {bundle.distribution} registers two bundles named {bundle.name!r}, in {listed(packages)}"


@dataclass(frozen=True)
class Found:
    """A bundle's folder, and what its ids begin with where the folder's place doesn't say."""

    root: Path
    id_root: str | None = None


def find_bundle(given: str | os.PathLike[str]) -> Found:
    """The bundle that a user means: a folder, or where none is there, an installed bundle by its name.

    Args:
        given: A path, the name of an installed bundle, or ``<distribution>/<name>`` where two have one name.

    Raises:
        BundleError: There is no such folder and no such bundle, or several.
    """
    text = os.fspath(given)
    root, fault = _real(text)
    if root is not None:
        return Found(root)
    named = [one for one in installed_bundles() if nfc(text) in (one.name, one.title)]
    if not named:
        raise _error(text, *(fault or _unknown(text)))
    if said := next(filter(None, map(conflict, named)), ""):
        raise _error(text, said, "uninstall the distribution, or ask its authors to rename one of them")
    if len(named) > 1:
        titles = " or ".join(one.title for one in named)
        raise _error(text, f"several distributions bring a bundle of this name: write {titles}", "")
    folder = named[0].folder()
    if folder is None:
        where = f"{named[0].package.replace('.', '/')}/{named[0].name}/"
        raise _error(text, f"the distribution {named[0].distribution} brings it as {where}, which isn't there", "")
    return Found(Path(os.path.realpath(folder)), named[0].id_root)


def _real(given: str) -> tuple[Path | None, tuple[str, str] | None]:
    """The folder without symlinks, or why there is none; with no reason where nothing of that name is there."""
    try:
        root = Path(os.path.realpath(given, strict=True))
        return (root, None) if root.is_dir() else (None, ("is no folder", "name the bundle's folder"))
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, RecursionError) as exc:
        return None, (f"can't be opened: {getattr(exc, 'strerror', None) or exc}", "")


def _unknown(given: str) -> tuple[str, str]:
    names = [one.name for one in installed_bundles()]
    if meant := nearest(given, names):
        return f"there is no such folder and no installed bundle {quote(given)}", f"did you mean {meant!r}?"
    known = f", or an installed bundle: {listed(names)}" if names else ""
    return "there is no such folder", f"name the bundle's folder{known}"


def _error(given: str, message: str, fix: str) -> BundleError:
    return BundleError(f"bundle {show(given)}", [Problem(".", message, fix)])


def owners(entity_id: str) -> Iterator[InstalledBundle]:
    """The installed bundles that an id can belong to."""
    return (one for one in installed_bundles() if entity_id.startswith(f"{one.id_root}/"))

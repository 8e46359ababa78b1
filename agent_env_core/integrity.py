"""Notices an installation in which another package stands where ours should.

Two mix-ups are known, and both make code run that isn't ours, or make ours vanish, without a word:

* ``agent_env`` is a namespace that several of our distributions share, so none of them has an ``__init__`` there. A
  foreign package of that name that has one hides all of our modules below it.
* ``openenv-core`` is the old name of ``openenv``. Both put files into the same package, so whichever was installed last
  wins file by file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import metadata, util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from agent_env_core.errors import PluginError, Problem

NAMESPACE = "agent_env"
OPENENV_FIX = "pip uninstall -y openenv-core openenv && pip install 'openenv>=0.9,<0.11'"


def problems(path: Sequence[str] | None = None) -> list[Problem]:
    """What is mixed up in this installation, each with its fix.

    Args:
        path: The folders to look in; by default where this Python looks.
    """
    return [*_foreign_namespace(path), *_two_openenvs(path)]


def check(path: Sequence[str] | None = None) -> None:
    """Refuses to go on in an installation that is mixed up.

    Raises:
        PluginError: Another package stands where ours should; the message holds the fix.
    """
    found = problems(path)
    if found:
        raise PluginError("; ".join(f"{problem.message}: {problem.fix}" for problem in found))


def _foreign_namespace(path: Sequence[str] | None) -> Iterator[Problem]:
    spec = util.find_spec(NAMESPACE) if path is None else PathFinder.find_spec(NAMESPACE, path)
    if spec is None or spec.origin is None:  # a namespace has no file of its own
        return
    owner = _owner(spec, path)
    source = f"{owner.metadata['Name']} {owner.version}" if owner else "a package that no distribution lists"
    remove = f"pip uninstall -y {owner.metadata['Name']}" if owner else f"remove {Path(spec.origin).parent}"
    yield Problem(
        NAMESPACE,
        f"the package {NAMESPACE!r} is {spec.origin}, of {source}, and hides agent-env's own modules of that name",
        f"{remove}, then install agent-env again",
    )


def _owner(spec: ModuleSpec, path: Sequence[str] | None) -> metadata.Distribution | None:
    """The distribution whose record lists the file of ``spec``. Reads every record: only for messages."""
    assert spec.origin is not None
    origin = Path(spec.origin).resolve()
    for distribution in _distributions(path):
        for file in distribution.files or ():
            if file.name == origin.name and Path(str(distribution.locate_file(file))).resolve() == origin:
                return distribution
    return None


def _distributions(path: Sequence[str] | None) -> Iterator[metadata.Distribution]:
    yield from metadata.distributions() if path is None else metadata.distributions(path=list(path))


def _version(name: str, path: Sequence[str] | None) -> str | None:
    if path is None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None
    found = next(iter(metadata.distributions(name=name, path=list(path))), None)
    return found.version if found else None


def _two_openenvs(path: Sequence[str] | None) -> Iterator[Problem]:
    old, new = _version("openenv-core", path), _version("openenv", path)
    if old is not None and new is not None:
        yield Problem(
            "openenv",
            f"openenv-core {old}, OpenEnv's old name, is installed beside openenv {new}, and they share their files",
            OPENENV_FIX,
        )

"""One entity's folder while it is read: its content, its toml, its id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent_env_core.bundle.config import ConfigFault, Problems, Table, parse_toml
from agent_env_core.bundle.folder import Entry, Folder
from agent_env_core.bundle.ids import MAX_AUTHORED_BYTES, PREFIX, id_fault, name_fault
from agent_env_core.bundle.model import Artifact
from agent_env_core.bundle.names import nfc, quote, show
from agent_env_core.bundle.references import Names


@dataclass
class Reading:
    """What the readers of one bundle share.

    Attributes:
        folder: Lists and reads files.
        problems: What is wrong so far.
        id_root: What derived ids begin with.
        names: What a reference can name; complete once every entity's folder was held.
        artifacts: By id; complete before envs and agents are read.
    """

    folder: Folder
    problems: Problems
    id_root: str
    names: Names = field(default_factory=lambda: Names({}))
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    def name_of(self, entry: Entry, stem: str) -> str | None:
        """An entity's name in composed form; None with a problem noted where no id can end in it."""
        if fault := name_fault(stem):
            self.problems.add(show(entry.rel), f"has a name that can't be part of an id: it {fault}", "rename it")
            return None
        return nfc(stem)

    def table(self, entry: Entry) -> Table | None:
        """A TOML file as a table of known keys; None with a problem noted where it can't be read."""
        place = show(entry.rel)
        data = self.folder.read(entry)
        if data is None:
            return None
        try:
            return Table(place, parse_toml(data), self.problems)
        except ConfigFault as exc:
            self.problems.add(place, str(exc))
            return None

    def find_artifact(self, table: Table, key: str, given: Any, artifact_type: str) -> str | None:
        """The id of an artifact that a toml names as a text or as ``{ artifact = "…", version = n }``.

        Returns:
            The id, or None with a problem noted.
        """
        wanted = {"artifact": given} if isinstance(given, str) else given
        if not isinstance(wanted, dict) or not isinstance(wanted.get("artifact"), str) or wanted.keys() - _PINNED:
            table.fault(key, f'must be the name of an artifact or {{ artifact = "…" }}, not {quote(given)}')
            return None
        target = self.names.resolve("artifact", wanted["artifact"], table.place, self.problems, table.at(key))
        if target is None:
            return None
        if target.type not in ("", artifact_type):
            fault = f"must name an artifact of type {artifact_type}, and {target.name!r} is of type {target.type}"
            table.fault(key, fault)
            return None
        if "version" in wanted:
            table.fault(key, f"pins a version, and {target.name!r} belongs to this bundle", "leave version out")
            return None
        return target.id


_PINNED = {"artifact", "version"}


@dataclass(frozen=True)
class Holding:
    """One entity's folder while it is read.

    Attributes:
        name: The entity's name.
        id: Its id, from its toml or its place.
        folder: The folder.
        files: Its content without its toml, by path relative to the folder.
        table: Its toml; an empty table where it has none.
        derived: Whether the id comes from its place.
        broken: Whether its toml can't be read, which is noted; it still has a name that references may use.
    """

    name: str
    id: str
    folder: Entry
    files: dict[str, Entry]
    table: Table
    derived: bool = True
    broken: bool = False

    @property
    def place(self) -> str:
        """How problems name it."""
        return show(self.folder.rel)


def declared_id(table: Table, derived: str) -> str:
    """The id that a toml declares, or ``derived``; an id that won't do is a problem, and ``derived`` is used."""
    own = table.text("id")
    if own is None:
        return derived
    if fault := id_fault(own, MAX_AUTHORED_BYTES):
        fix = "" if own.startswith(PREFIX) else f"write {PREFIX}…, or leave id out: it then follows from the place"
        table.fault("id", f"{quote(own)} {fault}", fix)
        return derived
    return own


def hold(reading: Reading, entry: Entry, toml: str | None, *special: str) -> Holding | None:
    """Reads an entity's folder.

    Args:
        reading: What the readers share.
        entry: The folder.
        toml: The name of its toml; None for a kind that has none.
        special: Other names that mean something here and must be spelled exactly.

    Returns:
        None, with a problem noted, where its name won't do.
    """
    name = reading.name_of(entry, entry.name)
    if name is None:
        return None
    place = show(entry.rel)
    files = {file.rel[len(entry.rel) + 1 :]: file for file in reading.folder.content(entry)}
    exact = (toml, *special) if toml else special
    spelled = reading.folder.exact([file for path, file in files.items() if "/" not in path], exact)
    files = {path: file for path, file in files.items() if "/" in path} | {file.name: file for file in spelled}
    derived = f"{reading.id_root}/{name}"
    own = files.pop(toml, None) if toml else None
    table = reading.table(own) if own else None
    files = dict(sorted(files.items()))
    if table is None:
        nothing = Table(f"{place}/{toml or special[0]}", {}, reading.problems)
        return Holding(name, derived, entry, files, nothing, broken=own is not None)
    return Holding(name, declared_id(table, derived), entry, files, table, derived="id" not in table.data)

"""One entity's folder while it is read: its content, its toml, its id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_env_core.bundle.config import ConfigFault, Problems, Table, parse_toml
from agent_env_core.bundle.folder import Entry, Folder
from agent_env_core.bundle.ids import MAX_AUTHORED_BYTES, PREFIX, id_fault, name_fault
from agent_env_core.bundle.model import Artifact, Env
from agent_env_core.bundle.names import nfc, quote, show
from agent_env_core.bundle.references import Names, Target, an
from agent_env_core.bundle.shelf import Shelf


@dataclass
class Reading:
    """What the readers of one bundle share.

    Attributes:
        folder: Lists and reads files.
        problems: What is wrong so far.
        id_root: What derived ids begin with.
        names: What a reference can name; complete once every entity's folder was held.
        artifacts: By id; complete before envs and agents are read.
        envs: By id; those that are no ``multi`` are complete before the others are read.
        pulled: What was named and lies elsewhere.
    """

    folder: Folder
    problems: Problems
    id_root: str
    names: Names = field(default_factory=lambda: Names({}))
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    envs: dict[str, Env] = field(default_factory=dict)
    pulled: Shelf = field(default_factory=Shelf)

    @contextmanager
    def noting(self, problems: Problems) -> Iterator[Problems]:
        """Has what is wrong be noted in ``problems`` for a while: it concerns one entity and not the whole bundle."""
        before = self.problems
        self.problems = self.folder.problems = problems
        try:
            yield problems
        finally:
            self.problems = self.folder.problems = before

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

    def find(self, table: Table, key: str, given: Any, kind: str, artifact_type: str = "") -> Target | None:
        """What a toml names as a text or as ``{ <kind> = "…", version = n }``; None with a problem noted.

        Args:
            table: Where it stands.
            key: The key it stands under.
            given: The value.
            kind: What it should name: ``artifact``, ``env`` or ``task``.
            artifact_type: The type it should have.
        """
        wanted = {kind: given} if isinstance(given, str) else given
        if not isinstance(wanted, dict) or not isinstance(wanted.get(kind), str) or wanted.keys() - {kind, "version"}:
            table.fault(key, f'must be the name of {an(kind)} or {{ {kind} = "…" }}, not {quote(given)}')
            return None
        target = self.names.resolve(kind, wanted[kind], table.place, self.problems, table.at(key))
        if target is None:
            return None
        if artifact_type and target.type not in ("", artifact_type):
            fault = f"must name an artifact of type {artifact_type}, and {target.name!r} is of type {target.type}"
            table.fault(key, fault)
            return None
        if "version" in wanted and not target.pinned:
            table.fault(key, f"pins a version, and {target.name!r} belongs to {target.home}", "leave version out")
            return None
        return target

    def artifact(self, entity_id: str) -> Artifact | None:
        """An artifact of the bundle or of elsewhere; None where it can't be read, which is noted."""
        return self.artifacts.get(entity_id) or self.pulled.artifacts.get(entity_id)

    def env(self, entity_id: str) -> Env | None:
        """The same of an env."""
        return self.envs.get(entity_id) or self.pulled.envs.get(entity_id)


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
        problems: What is wrong with it.
    """

    name: str
    id: str
    folder: Entry
    files: dict[str, Entry]
    table: Table
    derived: bool = True
    broken: bool = False
    problems: Problems = field(default_factory=Problems)

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
        return Holding(name, derived, entry, files, nothing, broken=own is not None, problems=reading.problems)
    entity_id, is_derived = declared_id(table, derived), "id" not in table.data
    return Holding(name, entity_id, entry, files, table, is_derived, problems=reading.problems)

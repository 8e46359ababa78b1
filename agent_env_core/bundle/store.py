"""The store map: what the bare ids of envs and artifacts stand for on this machine.

Bundles may name an env that no bundle holds, by the id it has in a store of its author's. The map says what runs in its
place: a folder like one of a bundle's ``envs/`` or ``artifacts/``, or an image::

    [envs.portsim]
    path = "~/portsim/env"                  # relative paths start from the map's own folder

    [envs.openciv3]
    image = "ghcr.io/example/openciv3:2"
    environment_name = "openciv3"

It is one file: the one that ``AGENT_ENV_STORE`` names, else ``agent-env/store.toml`` in the user's folder of settings
(``$XDG_CONFIG_HOME``, or ``~/.config``). An empty ``AGENT_ENV_STORE`` means none. A bundle can't bring one: it would
name folders outside the bundle's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_env_core.bundle.artifacts import read_artifact, read_derived
from agent_env_core.bundle.config import ConfigFault, Problems, Table, parse_toml
from agent_env_core.bundle.entities import DOCKERFILE, read_env
from agent_env_core.bundle.folder import Entry, Folder
from agent_env_core.bundle.holding import Holding, Reading, hold
from agent_env_core.bundle.model import Artifact, Env
from agent_env_core.bundle.names import quote, show
from agent_env_core.bundle.references import Names

VARIABLE = "AGENT_ENV_STORE"
#: The tables of the map: which kind each is of, and the keys of its entries.
TABLES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "envs": ("env", ("path", "image", "environment_name", "env_provider_type")),
    "artifacts": ("artifact", ("path", "image")),
}
_TOML = {"env": "env.toml", "artifact": "artifact.toml"}


class StoreFault(ValueError):
    """An entry that can't be used; the message says why, naming the map."""


def store_file() -> Path | None:
    """The file of the store map, whether or not it is there; None where the user wants none."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return Path(os.path.expanduser(named)) if named.strip() else None
    settings = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.path.expanduser(settings), "agent-env", "store.toml")


class Store:
    """The store map, read when it is first asked.

    Args:
        file: The map; None for none.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._tables: dict[str, dict[str, Any]] | None = None
        self._read: dict[tuple[str, str], tuple[Env | Artifact, ...]] = {}

    def hint(self, kind: str, entity_id: str) -> str:
        """How to map an id, for a message; empty where that can't be."""
        table = next((table for table, (named, _) in TABLES.items() if named == kind), "")
        if not table or self.file is None or not entity_id or not entity_id.isprintable():
            return ""
        key = entity_id if entity_id.replace("-", "").isalnum() and entity_id.isascii() else quote(entity_id)
        return f"map it in {show(str(self.file))} under [{table}.{key}]"

    def find(self, kind: str, entity_id: str) -> tuple[Env | Artifact, ...]:
        """What an id stands for, and after it the artifacts that it is made of; nothing where the map doesn't say.

        Raises:
            StoreFault: The map can't be read, or its entry doesn't lead to anything usable.
        """
        table = next((table for table, (named, _) in TABLES.items() if named == kind), None)
        entry = self._load().get(table, {}).get(entity_id) if table else None
        if entry is None or table is None:
            return ()
        if (kind, entity_id) not in self._read:
            self._read[kind, entity_id] = self._entity(kind, entity_id, entry, f"{table}.{entity_id}")
        return self._read[kind, entity_id]

    def _load(self) -> dict[str, dict[str, Any]]:
        if self._tables is None:
            self._tables = self._parse()
        return self._tables

    def _parse(self) -> dict[str, dict[str, Any]]:
        if self.file is None:
            return {}
        try:
            data = parse_toml(self.file.read_bytes())
        except FileNotFoundError as exc:
            if VARIABLE in os.environ:
                raise StoreFault(f"{VARIABLE} names {show(str(self.file))}, which isn't there") from exc
            return {}
        except OSError as exc:
            raise StoreFault(f"the store map {show(str(self.file))} can't be read: {exc.strerror or exc}") from exc
        except ConfigFault as exc:
            raise StoreFault(f"the store map {show(str(self.file))} {exc}") from exc
        problems = Problems()
        top = Table(str(self.file), data, problems)
        top.known(TABLES)
        found = {}
        for name in TABLES:
            part = top.table(name)
            found[name] = dict(part.data) if part else {}
        self._raise(problems)
        return found

    def _raise(self, problems: Problems) -> None:
        if problems.found:
            told = "; ".join(str(replace(problem, place="")).removeprefix(": ") for problem in problems.found[:3])
            raise StoreFault(f"the store map {show(str(self.file))}: {told}")

    # -- one entry

    def _entity(self, kind: str, entity_id: str, entry: Any, at: str) -> tuple[Env | Artifact, ...]:
        problems = Problems()
        table = Table(str(self.file), entry if isinstance(entry, dict) else {}, problems, at)
        if not isinstance(entry, dict):
            problems.add("", f"{at} must be a table, not {quote(entry)}")
        _, keys = next(value for value in TABLES.values() if value[0] == kind)
        table.known(keys)
        path, image = table.text("path"), table.text("image")
        if not problems.found and (path is None) == (image is None):
            table.fault("path", "or image has to be set, and not both", "write path = a folder, or image = a reference")
        self._raise(problems)
        overrides = {key: entry[key] for key in keys if key in entry and key not in ("path", "image")}
        held, reading = self._held(kind, path, image, problems, at)
        if held is not None and not held.broken:
            mapped = replace(held, id=entity_id, name=entity_id.rpartition("/")[2] or entity_id)
            mapped = replace(mapped, table=Table(held.table.place, {**held.table.data, **overrides}, problems))
            made = read_env(reading, mapped) if kind == "env" else read_artifact(reading, mapped)
            if made is not None and not problems.found:
                derived = read_derived(mapped) if made.type == "environment_universe" else ()
                return (made, *derived)
        told = "; ".join(f"{problem.place}: {problem.message}" for problem in problems.found[:3])
        raise StoreFault(f"the store map {show(str(self.file))}: {at} can't be used: {told or 'nothing is there'}")

    def _held(
        self, kind: str, path: str | None, image: str | None, problems: Problems, at: str
    ) -> tuple[Holding | None, Reading]:
        """The folder that an entry names as one of a bundle's would be held, or one made of its image."""
        file = str(self.file)
        if image is not None:
            data = {"image": {"ref": image}} if kind == "env" else {"type": "docker_image", "ref": image}
            entry = Entry(file, file, file, "file")
            return Holding("", "", entry, {}, Table(at, data, problems)), self._reading(file, problems)
        try:
            root = os.path.realpath(os.path.join(os.path.dirname(file), os.path.expanduser(path or "")), strict=True)
            found = os.path.isdir(root)
        except (OSError, ValueError):
            found = False
        if not found:
            problems.add(at, f"path {quote(path)} is no folder")
            return None, self._reading(file, problems)
        reading = self._reading(root, problems)
        return hold(reading, Entry(os.path.basename(root), root, root, "dir"), _TOML[kind], DOCKERFILE), reading

    def _reading(self, root: str, problems: Problems) -> Reading:
        """A reading of one folder, which has nothing beside it to name."""
        names = Names({"env": (), "artifact": ()})
        return Reading(Folder(Path(root), problems), problems, f"@local{root}", names)


def type_of(entity: Env | Artifact) -> str:
    """The type that references see: an artifact's; an env's are all alike."""
    return entity.type if isinstance(entity, Artifact) else ""

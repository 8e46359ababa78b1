"""Entities that a bundle names and doesn't have: those of the store map, of installed bundles, and their aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from agent_env_core.bundle.config import Problems
from agent_env_core.bundle.installed import InstalledBundle, conflict, installed_bundles, owners
from agent_env_core.bundle.model import Env
from agent_env_core.bundle.names import listed, nearest, quote
from agent_env_core.bundle.references import Lost, Target
from agent_env_core.bundle.shelf import Shelf
from agent_env_core.bundle.store import Store, StoreFault, type_of


class Elsewhere:
    """Finds them, reads them when they are first named, and keeps what was named.

    Args:
        store: The store map.
        read: Reads the entities of an installed bundle, asks this for what they name, and notes what is wrong.
    """

    def __init__(self, store: Store, read: Callable[[InstalledBundle, Problems, Elsewhere], Shelf]) -> None:
        self.store = store
        self.pulled = Shelf()
        self._read = read
        self._shelves: dict[InstalledBundle, Shelf | Lost] = {}

    def find(self, kind: str, value: str) -> Target | Lost | None:
        """What a reference means that names nothing of its own bundle, or why it can't be had.

        Returns:
            None where nobody knows it.
        """
        if kind == "task":  # an eval lists tasks of its own bundle, and nothing else names one
            return None
        for bundle in owners(value):
            return self._installed(bundle, kind, value)
        try:
            found = self.store.find(kind, value)
        except StoreFault as exc:
            return Lost(str(exc), "")
        for entity in found:
            if isinstance(entity, Env):
                self.pulled.envs[entity.id] = entity
            else:
                self.pulled.artifacts[entity.id] = entity
        if not found:
            return self._alias(kind, value)
        return Target(found[0].id, found[0].name, type_of(found[0]), "the store map", pinned=True)

    def hint(self, kind: str, value: str) -> str:
        """How a user makes an id known, or an empty text."""
        return self.store.hint(kind, value)

    def _installed(self, bundle: InstalledBundle, kind: str, entity_id: str) -> Target | Lost:
        shelf = self._shelf(bundle)
        if isinstance(shelf, Lost):
            return shelf
        target = shelf.names.find(kind, entity_id)
        if target is None:
            names = [one.name for one in shelf.names.targets.get(kind, ())]
            meant = nearest(entity_id.rpartition("/")[2], names)
            fix = f"did you mean {bundle.id_root}/{meant}?" if meant else f"it has: {listed(names)}"
            return Lost(f"the installed bundle {bundle.title} has no {kind} {quote(entity_id)}", fix)
        if why := shelf.names.refusal(kind, target.id):
            return Lost(f"the {kind} {target.name!r} of {bundle.title} {why.message}", why.fix)
        self.pulled.take(kind, target.id, shelf)
        return replace(target, home=f"the installed bundle {bundle.title}")

    def _shelf(self, bundle: InstalledBundle) -> Shelf | Lost:
        if bundle not in self._shelves:
            self._shelves[bundle] = Lost(f"the installed bundle {bundle.title} names itself through another one", "")
            problems = Problems()
            shelf = Shelf() if (said := conflict(bundle)) else self._read(bundle, problems, self)
            if not said and problems.found:
                said = f"the installed bundle {bundle.title} can't be used: {problems.found[0]}"
            self._shelves[bundle] = Lost(said, "") if said else shelf
        return self._shelves[bundle]

    def _alias(self, kind: str, value: str) -> Target | Lost | None:
        bearers = dict(self._bearers(kind, value)) if kind in ("env", "agent") else {}
        if len(bearers) > 1:
            titles = " and ".join(bundle.title for bundle in bearers)
            return Lost(f"{quote(value)} is an alias in several installed bundles: {titles}", "write the full id")
        for bundle, entity_id in bearers.items():
            return self._installed(bundle, kind, entity_id)
        return None

    def _bearers(self, kind: str, alias: str) -> Iterator[tuple[InstalledBundle, str]]:
        for bundle in installed_bundles():
            folder = bundle.folder()
            if folder is None or not (folder / "aliases.toml").is_file():
                continue
            shelf = self._shelf(bundle)  # a broken one bears no alias; who names it by its id is told what is wrong
            entity_id = shelf.aliases.get(kind, {}).get(alias) if isinstance(shelf, Shelf) else None
            if isinstance(shelf, Shelf) and entity_id and not shelf.names.refusal(kind, entity_id):
                yield bundle, entity_id

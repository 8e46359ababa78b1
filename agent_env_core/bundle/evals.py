"""Evals, and the short names that an installed bundle may give its envs and agents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent_env_core.bundle.config import Table
from agent_env_core.bundle.folder import Entry
from agent_env_core.bundle.holding import Holding, Reading, declared_id
from agent_env_core.bundle.model import ALL_SPLIT
from agent_env_core.bundle.names import listed, quote

EVAL_TYPE = "eval"
EVAL_KEYS = ("tasks", "type", "id")
_ALIAS = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
#: Tables of aliases.toml, and the kind of entity each names.
ALIAS_TABLES = {"agents": "agent", "envs": "env"}


def read_eval(reading: Reading, table: Table, name: str) -> tuple[str, tuple[str, ...]]:
    """An eval's id and the ids of its tasks."""
    if name == ALL_SPLIT:
        reading.problems.add(table.place, f"can't be named {ALL_SPLIT!r}: that split holds every task", "rename it")
    table.known(EVAL_KEYS)
    kind = table.text("type") or EVAL_TYPE
    if kind != EVAL_TYPE:
        table.fault("type", f"{quote(kind)} is unknown", f"use {EVAL_TYPE}, or leave it out")
    entity_id = declared_id(table, f"{reading.id_root}/{name}")
    given = table.data.get("tasks")
    if not isinstance(given, list) or not given:
        told = "is missing" if given is None else f"must be a list of tasks with at least one, not {quote(given)}"
        table.fault("tasks", told, 'write tasks = ["…"]')
        return entity_id, ()
    found: dict[str, None] = {}
    for at, item in enumerate(given):
        task = reading.find(table, f"tasks[{at}]", item, "task")
        if task and task.id in found:
            table.fault(f"tasks[{at}]", f"lists {quote(item)} again", "list each task once")
        elif task:
            found[task.id] = None
    return entity_id, tuple(found)


def read_aliases(reading: Reading, entry: Entry, holdings: Mapping[str, list[Holding]]) -> dict[str, dict[str, str]]:
    """Reads ``aliases.toml``. Aliases work once a bundle is installed by a distribution, not from a folder.

    Args:
        reading: What the readers share.
        entry: The file.
        holdings: The folders of each kind, ``agents`` and ``envs`` among them.

    Returns:
        Kind to alias to the id of what bears it.
    """
    found: dict[str, dict[str, str]] = {}
    table = reading.table(entry)
    if table is None:
        return found
    table.known(ALIAS_TABLES)
    for folder, kind in ALIAS_TABLES.items():
        part = table.table(folder)
        if part is None:
            continue
        by_name = {held.name: held for held in holdings[folder]}
        taken: dict[str, str] = {}
        for name, aliases in part.data.items():
            held = by_name.get(name)
            if held is None:
                part.fault(name, f"is no folder of {folder}/", f"it has: {listed(by_name)}")
            elif not held.derived:
                part.fault(name, "has an id of its own, and only a derived id may have aliases", "leave its id out")
            if not isinstance(aliases, list) or not aliases:
                part.fault(name, f"must be a list of aliases, not {quote(aliases)}")
                continue
            for alias in aliases:
                _alias(reading, part, kind, name, alias, taken)
        ids = {name: held.id for name, held in by_name.items()}
        found[kind] = {alias: ids[name] for alias, name in taken.items() if name in ids}
    return found


def _alias(reading: Reading, part: Table, kind: str, name: str, alias: Any, taken: dict[str, str]) -> None:
    if not isinstance(alias, str) or not _ALIAS.fullmatch(alias):
        fix = "use lower-case letters, digits and hyphens, 64 at most, with no hyphen at an end"
        part.fault(name, f"has the alias {quote(alias)}, which can't be one", fix)
    elif (owner := taken.setdefault(alias, name)) != name:
        part.fault(name, f"has the alias {alias!r}, and so has {owner!r}", "give it to one of them")
    elif (other := reading.names.find(kind, alias)) and other.name != name:
        part.fault(name, f"has the alias {alias!r}, which is another {kind}'s name", "choose another")

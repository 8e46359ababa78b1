"""Artifacts and skills: files that tasks use. They share one namespace and one store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_env_core.bundle import frontmatter
from agent_env_core.bundle.entities import DOCKERFILE, read_ref
from agent_env_core.bundle.holding import Holding, Reading
from agent_env_core.bundle.model import Artifact, Skill
from agent_env_core.bundle.names import listed, nfc, quote
from agent_env_core.bundle.references import Target

SKILL_FILE = "SKILL.md"
_SKILL_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_SKILL_LIMITS = {"name": 64, "description": 1024, "compatibility": 500}
SKILL_KEYS = ("name", "description", "license", "compatibility", "allowed-tools", "metadata")

Settings = dict[str, Any]


def artifact_type(held: Holding) -> str:
    """The type an artifact's toml names, or the one its content shows; empty where its toml is wrong. Notes nothing."""
    if held.broken or "type" in held.table.data:
        declared = held.table.data.get("type")
        return declared if isinstance(declared, str) and declared in ARTIFACT_TYPES else ""
    if DOCKERFILE in held.files:
        return "docker_image"
    return "file" if len(held.files) == 1 else "file_artifact_universe"


def read_artifact(reading: Reading, held: Holding) -> Artifact | None:
    """An artifact from its folder; None with problems noted."""
    table = held.table
    if SKILL_FILE in held.files:
        reading.problems.add(held.place, f"has a {SKILL_FILE}, so it is a skill", "move the folder to skills/")
        return None
    kind = artifact_type(held)
    if not kind:
        if declared := table.text("type"):
            table.fault("type", f"{quote(declared)} is unknown", f"use one of {', '.join(ARTIFACT_TYPES)}")
        return None
    if not held.files and not table.data:
        reading.problems.add(held.place, "is empty", "put files in it, or remove it")
        return None
    keys, read = ARTIFACT_TYPES[kind]
    table.known(("type", "id", *keys))
    before = len(reading.problems.found)
    settings = read(reading, held)
    description = table.text("description") if "description" in keys else None
    if len(reading.problems.found) > before:
        return None
    return Artifact(held.id, held.name, kind, Path(held.folder.path), tuple(held.files), description or "", settings)


def _one_file(reading: Reading, held: Holding) -> None:
    if len(held.files) != 1:
        message = f"must hold exactly one file, and holds {len(held.files)}: {listed(held.files, limit=6)}"
        reading.problems.add(held.place, message)


def _file(reading: Reading, held: Holding) -> Settings:
    _one_file(reading, held)
    return {}


def _universe(reading: Reading, held: Holding) -> Settings:
    if not held.files:
        reading.problems.add(held.place, "is empty", "put files in it, or remove it")
    return {}


def _docker_image(reading: Reading, held: Holding) -> Settings:
    if "ref" in held.table.data:
        if DOCKERFILE in held.files:
            message = f"has a {DOCKERFILE} and a ref, and only one of them can be the image"
            reading.problems.add(held.place, message, "remove one of them")
        return {"ref": read_ref(held.table, "ref", held.table.data["ref"])}
    if DOCKERFILE not in held.files:
        fix = f"add one, or set ref in {held.table.place}"
        reading.problems.add(held.place, f"has neither a {DOCKERFILE} nor a ref", fix)
    return {}


def _environment(reading: Reading, held: Holding) -> Settings:
    settings: Settings = {"environment_name": held.table.text("environment_name", required=True)}
    given = held.table.data.get("file")
    if given is None:
        _one_file(reading, held)
    elif held.files:
        held.table.fault("file", "names another artifact, and the folder holds files too", "keep one of them")
    else:
        target = reading.find(held.table, "file", given, "artifact", "file")
        settings["file"] = target.id if target else None
    return settings


def _environment_universe(reading: Reading, held: Holding) -> Settings:
    """Seeds for several servers: other artifacts, or ``<environment_name>/<file>`` and ``metadata/<key>/<file>``."""
    given = held.table.data.get("environment_artifacts", [])
    if not isinstance(given, list):
        held.table.fault("environment_artifacts", f"must be a list, not {quote(given)}")
        return {}
    named = []
    for at, item in enumerate(given):
        named.append(reading.find(held.table, f"environment_artifacts[{at}]", item, "artifact", "environment"))
    folders = _seed_folders(held)
    for path in set(held.files).difference(*folders.values()):
        fix = "put it in <environment_name>/ or metadata/<key>/"
        reading.problems.add(f"{held.place}/{path}", "is in no place that an environment_universe has", fix)
    for folder, paths in folders.items():
        if len(paths) > 1:
            message = f"must hold exactly one file, and holds {len(paths)}"
            reading.problems.add(f"{held.place}/{folder}", message)
    if not named and not folders:
        reading.problems.add(held.place, "holds no seed", "add <environment_name>/<file>, or environment_artifacts")
    derived = tuple(target.id for target in derived_targets(held) if target.type == "environment")
    return {"environment_artifacts": tuple(target.id for target in named if target), "derived": derived}


def _seed_folders(held: Holding) -> dict[str, list[str]]:
    """The files of a universe by the folder they seed from: ``<environment_name>`` or ``metadata/<key>``."""
    folders: dict[str, list[str]] = {}
    for path in held.files:
        parts = path.split("/")
        if len(parts) == (3 if parts[0] == "metadata" else 2):
            folders.setdefault("/".join(parts[:-1]), []).append(path)
    return folders


def derived_targets(held: Holding) -> Iterator[Target]:
    """The artifacts that the folders of a universe stand for; their names are its own with ``__`` and theirs."""
    for folder in _seed_folders(held) if artifact_type(held) == "environment_universe" else ():
        end = "__" + nfc(folder.replace("/", "__"))
        if folder.startswith("metadata/"):
            yield Target(held.id + end, held.name + end, "file")
        else:
            yield Target(held.id + end, held.name + end, "environment")
            yield Target(f"{held.id}{end}__file", f"{held.name}{end}__file", "file")


def read_derived(held: Holding) -> Iterator[Artifact]:
    """The same artifacts as :func:`derived_targets`, read."""
    for folder, files in _seed_folders(held).items():
        end = "__" + nfc(folder.replace("/", "__"))
        place, content = Path(held.folder.path), (files[0],)
        if folder.startswith("metadata/"):
            yield Artifact(held.id + end, held.name + end, "file", place, content)
            continue
        file = f"{held.id}{end}__file"
        settings = {"environment_name": nfc(folder), "file": file}
        yield Artifact(held.id + end, held.name + end, "environment", place, (), settings=settings)
        yield Artifact(file, f"{held.name}{end}__file", "file", place, content)


def _cli(reading: Reading, held: Holding) -> Settings:
    _universe(reading, held)
    return {key: held.table.text(key, required=True) for key in ("command_name", "entrypoint")}


#: Each type's own keys in artifact.toml, and its reader.
ARTIFACT_TYPES: Mapping[str, tuple[tuple[str, ...], Callable[[Reading, Holding], Settings]]] = {
    "file": (("description",), _file),
    "file_artifact_universe": ((), _universe),
    "docker_image": (("description", "ref"), _docker_image),
    "environment": (("environment_name", "file", "description"), _environment),
    "environment_universe": (("environment_artifacts",), _environment_universe),
    "cli": (("command_name", "entrypoint"), _cli),
}
#: Types that name other artifacts, in the order in which they can be read.
MADE_OF_OTHERS = {"environment": 1, "environment_universe": 2}


def read_skill(reading: Reading, held: Holding) -> Skill | None:
    """A skill from its folder; None with problems noted."""
    entry = held.files.get(SKILL_FILE)
    if entry is None:
        reading.problems.add(held.place, f"has no {SKILL_FILE}", "add one that begins with its name and description")
        return None
    place = f"{held.place}/{SKILL_FILE}"
    data = reading.folder.read(entry)
    if data is None:
        return None
    try:
        lines, _ = frontmatter.split(data.decode("utf-8"))
        front = frontmatter.parse(lines)
    except UnicodeDecodeError:
        reading.problems.add(place, "is not UTF-8 text")
        return None
    except frontmatter.FrontMatterFault as exc:
        reading.problems.add(place, str(exc))
        return None
    faults = _skill_faults(held.name, front)
    for message, fix in faults:
        reading.problems.add(place, message, fix)
    if faults:
        return None
    return Skill(held.id, held.name, Path(held.folder.path), tuple(held.files), front["description"])


def _skill_faults(folder: str, front: Mapping[str, str]) -> list[tuple[str, str]]:
    faults = []
    for key in front:
        if key not in SKILL_KEYS:
            faults.append((f"unknown key {quote(key)} in its front matter", f"known keys: {', '.join(SKILL_KEYS)}"))
    for key in ("name", "description"):
        if not front.get(key):
            faults.append((f"has no {key} in its front matter", f"add {key}: …"))
    for key, limit in _SKILL_LIMITS.items():
        if len(front.get(key, "")) > limit:
            faults.append((f"{key} is {len(front[key])} characters long, and {limit} is the limit", "shorten it"))
    name = front.get("name", "")
    if name and name != folder:
        faults.append((f"name {quote(name)} differs from its folder's, {folder!r}", "make them equal"))
    elif name and not _SKILL_NAME.fullmatch(name):
        rule = "may hold only lower-case letters, digits, and single hyphens between them"
        faults.append((f"name {quote(name)} {rule}", ""))
    return faults

"""Reads a bundle folder: everything in it is checked, and every problem is raised at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from agent_env_core.bundle.artifacts import (
    MADE_OF_OTHERS,
    SKILL_FILE,
    artifact_type,
    derived_targets,
    read_artifact,
    read_derived,
    read_skill,
)
from agent_env_core.bundle.config import Problems
from agent_env_core.bundle.elsewhere import Elsewhere
from agent_env_core.bundle.entities import DOCKERFILE, MULTI_TYPE, is_multi, read_agent, read_env
from agent_env_core.bundle.evals import read_aliases, read_eval
from agent_env_core.bundle.folder import Entry, Folder
from agent_env_core.bundle.holding import Holding, Reading, hold
from agent_env_core.bundle.ids import id_fault, id_root
from agent_env_core.bundle.installed import InstalledBundle, find_bundle
from agent_env_core.bundle.model import Bundle, Eval, LeftOut, Task
from agent_env_core.bundle.names import nfc, show
from agent_env_core.bundle.references import FROM_STORE, Lost, Names, Target
from agent_env_core.bundle.shelf import Shelf
from agent_env_core.bundle.store import Store, store_file
from agent_env_core.bundle.tasks import Declarations, StepTypes, TaskReader
from agent_env_core.errors import BundleError

KINDS = ("envs", "agents", "artifacts", "skills", "tasks", "evals")
ALIASES = "aliases.toml"
README = "README.md"
RESERVED = "bundle.toml"


def load_bundle(path: str | os.PathLike[str], step_types: StepTypes) -> Bundle:
    """Reads and checks a bundle.

    What is wrong with one task leaves that task out, and what is wrong with an env, an artifact or a skill leaves out
    the tasks that name it; see :attr:`Bundle.left_out`. What is wrong with anything else has to be mended first.

    Args:
        path: The bundle's folder; or, where no folder is there, the name of an installed bundle.
        step_types: What a step type declares, by the name a task writes; None for a type that nobody has. It may raise
            ``PluginError``; its message then stands in the problem.

    Returns:
        The bundle, with references as ids.

    Raises:
        BundleError: There is no such bundle, something in it is wrong that concerns all of it, or none of its tasks
            can be used; holds every problem found.
    """
    found = find_bundle(path)
    problems = Problems()
    elsewhere = Elsewhere(Store(store_file()), _read_installed)
    bundle = _BundleReader(found.root, found.id_root, problems, elsewhere).read(step_types)
    if bundle is None or problems or (bundle.problems and not bundle.tasks):
        every = [*problems.found, *(bundle.problems if bundle else ())]
        raise BundleError(f"bundle {show(str(found.root))}", every)
    return bundle


def _read_installed(bundle: InstalledBundle, problems: Problems, elsewhere: Elsewhere) -> Shelf:
    folder = bundle.folder()
    if folder is None:
        problems.add(".", "its folder isn't there", "install the distribution again")
        return Shelf()
    root = Path(os.path.realpath(folder))
    return _BundleReader(root, bundle.id_root, problems, elsewhere).read_shelf()


class _Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def path(self) -> Path: ...


E = TypeVar("E", bound=_Named)
T = TypeVar("T")


class _BundleReader:
    """One reading of one folder."""

    def __init__(self, root: Path, ids: str | None, problems: Problems, elsewhere: Elsewhere) -> None:
        self.root = root
        self.problems = problems
        self.elsewhere = elsewhere
        self.folder = Folder(root, problems)
        self.reading = Reading(self.folder, problems, ids or id_root(root), pulled=elsewhere.pulled)
        self.ignored: list[str] = []
        self.faults = Problems()
        self.kinds, self.others = self._kinds()
        self.holdings = self._hold()
        self.tasks = self._files(self.kinds.get("tasks"), ".json")
        self.evals = self._files(self.kinds.get("evals"), ".toml")
        self.reading.names = self._names()

    def read(self, step_types: StepTypes) -> Bundle | None:
        """The bundle, or None where the folder is none; what is wrong is noted."""
        if fault := id_fault(self.reading.id_root):
            fix = "move the bundle to a folder whose path has letters, digits, spaces and . _ - ~ @ ( ) + , & only"
            self.problems.add(".", f"has a path that can't be part of an id: it {fault}", fix)
        if not self.kinds:
            if not self.problems.found:
                message = f"is not a bundle: it has none of the folders {', '.join(KINDS)}"
                self.problems.add(".", message, "add tasks/ to begin with")
            return None
        shelf = self.read_shelf()
        tasks, left_out = self._tasks(Declarations(step_types))
        pulled = self.elsewhere.pulled
        return Bundle(
            name=nfc(self.root.name),
            root=self.root,
            id_root=self.reading.id_root,
            description=self._description(self.others.get(README)),
            envs=_merged(pulled.envs, shelf.envs),
            agents=_merged(pulled.agents, shelf.agents),
            artifacts=_merged(pulled.artifacts, shelf.artifacts),
            skills=_merged(pulled.skills, shelf.skills),
            tasks=tasks,
            evals=self._evals(),
            left_out=left_out,
            faults=tuple(sorted({*self.faults.found})),
            ignored=tuple(self.ignored),
        )

    def read_shelf(self) -> Shelf:
        """The entities that lie in folders of their own, and the aliases of them."""
        reading, held = self.reading, self.holdings
        for held_artifact in sorted(held["artifacts"], key=lambda one: MADE_OF_OTHERS.get(artifact_type(one), 0)):
            reading.artifacts |= self._sound("artifact", [held_artifact], read_artifact)
            if artifact_type(held_artifact) == "environment_universe" and held_artifact.id in reading.artifacts:
                reading.artifacts.update((artifact.id, artifact) for artifact in read_derived(held_artifact))
        reading.artifacts = dict(sorted(reading.artifacts.items()))
        skills = self._sound("skill", held["skills"], read_skill)
        for env in sorted(held["envs"], key=is_multi):  # those that are made of others last
            reading.envs |= self._sound("env", [env], read_env)
        reading.envs = dict(sorted(reading.envs.items()))
        agents = self._sound("agent", held["agents"], read_agent)
        aliases = read_aliases(reading, self.others[ALIASES], held) if ALIASES in self.others else {}
        return Shelf(reading.names, reading.envs, agents, reading.artifacts, skills, aliases)

    def _sound(
        self, kind: str, holdings: Iterable[Holding], read: Callable[[Reading, Holding], E | None]
    ) -> dict[str, E]:
        """Those that nothing is wrong with, by id; what names one of the others is told so."""
        found = []
        for held in holdings:
            with self.reading.noting(held.problems):
                entity = None if held.broken else read(self.reading, held)
            if held.problems:
                self._refuse(kind, held)
            elif entity is not None:
                found.append(entity)
        return {entity.id: entity for entity in sorted(found, key=lambda entity: entity.id)}

    def _refuse(self, kind: str, held: Holding) -> None:
        self.faults.found += held.problems.found
        if kind in FROM_STORE:  # a played episode never needs the agent itself
            return
        first = min(held.problems.found or held.problems.follows)
        why = Lost("can't be used", f"mend {first.place}: {first.message}")
        ids = [held.id, *(target.id for target in derived_targets(held))] if kind == "artifact" else [held.id]
        for entity_id in ids:
            self.reading.names.refuse(kind, entity_id, why)
            if kind == "skill":  # which stand among artifacts too
                self.reading.names.refuse("artifact", entity_id, why)

    # -- the root

    def _kinds(self) -> tuple[dict[str, Entry], dict[str, Entry]]:
        """The kind folders, and the other entries of the root that mean something."""
        names = [*KINDS, ALIASES, RESERVED, README]
        present = [entry for entry in self.folder.scan("", str(self.root)) if not entry.name.startswith(".")]
        kinds: dict[str, Entry] = {}
        others: dict[str, Entry] = {}
        for entry in present:
            want = next((name for name in names if name.casefold() == entry.name.casefold()), "")
            if not want:
                self.ignored.append(entry.rel)
            elif want == README:
                if entry.name == README or README not in others:
                    others[README] = entry
            elif want == RESERVED:
                message = f"is reserved: a bundle's settings are its folders, and {RESERVED} has no meaning"
                self.problems.add(show(entry.rel), message, "remove it")
            elif spelled := self._spelled(entry, want, present):
                (kinds if want in KINDS else others)[want] = spelled
        return kinds, others

    def _spelled(self, entry: Entry, want: str, beside: list[Entry]) -> Entry | None:
        """An entry under its right name; None with a problem noted where it is of the wrong sort."""
        settled = self.folder.settle(entry)
        if settled is None:
            return None
        if entry.name != want and any(other.name == want for other in beside):
            message = f"stands beside {want}, which differs only by case"
            self.problems.add(show(entry.rel), message, "remove one of them")
            return None
        if entry.name != want:
            self.problems.add(show(entry.rel), f"is spelled in another case than {want}", f"rename it to {want}")
        if settled.is_dir == (want in KINDS):
            return settled
        self.problems.add(show(entry.rel), "must be a folder" if want in KINDS else "must be a file")
        return None

    def _description(self, readme: Entry | None) -> str:
        """The first line of text in the README: no heading marks, no badges, pictures or markup."""
        settled = self.folder.settle(readme) if readme else None
        if settled is None or settled.is_dir:
            return ""
        data = self.folder.read(settled, skip_large=True) or b""
        lines = data.decode("utf-8-sig", errors="replace").splitlines()
        if lines and lines[0].rstrip() == "---":
            end = next((at for at, line in enumerate(lines[1:], start=1) if line.rstrip() == "---"), 0)
            lines = lines[end + 1 :]
        for line in lines:
            text = line.strip().strip("#").strip()
            if text and not re.match(r"<|\[!\[|!\[", text):
                return text
        return ""

    # -- what lies in the kind folders

    def _hold(self) -> dict[str, list[Holding]]:
        """Every entity's folder, by kind."""
        names: dict[str, tuple[str | None, tuple[str, ...]]] = {
            "envs": ("env.toml", (DOCKERFILE,)),
            "agents": ("agent.toml", (DOCKERFILE,)),
            "artifacts": ("artifact.toml", (DOCKERFILE, SKILL_FILE)),
            "skills": (None, (SKILL_FILE,)),
        }
        holdings: dict[str, list[Holding]] = {}
        for kind, (toml, special) in names.items():
            with self.reading.noting(self.faults):
                folders = self._folders(self.kinds.get(kind))
            holdings[kind] = []
            for entry in folders:
                with self.reading.noting(Problems()) as problems:
                    held = hold(self.reading, entry, toml, *special)
                if held is None:
                    self.faults.found += problems.found
                else:
                    holdings[kind].append(held)
        for held in (*holdings["artifacts"], *holdings["skills"]):
            if "__" in held.name:
                held.problems.add(held.place, "has '__' in its name, which derived ids use", "rename it")
        self._unique(holdings["envs"])
        self._unique(holdings["agents"])
        self._unique([*holdings["artifacts"], *holdings["skills"]])
        return holdings

    def _unique(self, store: list[Holding]) -> None:
        """Notes folders of one store that share a name or an id; artifacts and skills have one store together."""
        first: dict[str, Holding] = {}
        for held in store:
            others = [first.setdefault(key, held) for key in (held.name, held.id)]
            if other := next((other for other in others if other is not held), None):
                what = "name" if other.name == held.name else "id"
                self.problems.add(held.place, f"has the {what} of {other.place}", f"give one of them another {what}")

    def _entries(self, kind: Entry | None) -> list[Entry]:
        if kind is None:
            return []
        return [e for e in self.folder.entries(kind.rel, kind.path) if not e.name.startswith(".")]

    def _folders(self, kind: Entry | None) -> list[Entry]:
        """The folders of a kind; loose files are ignored."""
        entries = self._entries(kind)
        self.ignored.extend(entry.rel for entry in entries if not entry.is_dir)
        folders = [entry for entry in entries if entry.is_dir]
        self.folder.collide(folders)
        return folders

    def _files(self, kind: Entry | None, suffix: str) -> dict[str, Entry]:
        """The files of a kind by entity name; files of another suffix are ignored, folders are problems."""
        found: dict[str, Entry] = {}
        counted = []
        for entry in self._entries(kind):
            stem, end = entry.name[: -len(suffix)], entry.name[-len(suffix) :]
            if entry.is_dir:
                self.problems.add(show(entry.rel), "is a folder, and only files are read here", "move its files up")
            elif end.casefold() != suffix or not stem:
                self.ignored.append(entry.rel)
            else:
                if end != suffix:
                    fix = f"rename it to {show(stem + suffix)}"
                    self.problems.add(show(entry.rel), f"ends in {end}, and must end in {suffix}", fix)
                counted.append(entry)
                if name := self.reading.name_of(entry, stem):
                    found.setdefault(name, entry)
        self.folder.collide(counted)
        return dict(sorted(found.items()))

    def _names(self) -> Names:
        holdings = self.holdings
        skills = [Target(held.id, held.name, "skill") for held in holdings["skills"]]
        artifacts = [Target(held.id, held.name, artifact_type(held)) for held in holdings["artifacts"]]
        derived = (target for held in holdings["artifacts"] for target in derived_targets(held))
        targets = {
            "env": [Target(held.id, held.name, MULTI_TYPE if is_multi(held) else "") for held in holdings["envs"]],
            "agent": [Target(held.id, held.name) for held in holdings["agents"]],
            "artifact": [*artifacts, *skills, *derived],
            "skill": skills,
            "task": [Target(self._file_id(name), name) for name in self.tasks],
        }
        return Names(targets, tuple(self.ignored), self.elsewhere)

    # -- tasks and evals

    def _file_id(self, name: str) -> str:
        return f"{self.reading.id_root}/{name}"

    def _tasks(self, declarations: Declarations) -> tuple[tuple[Task, ...], tuple[LeftOut, ...]]:
        """The tasks that can be used, and those that can't."""
        reader = TaskReader(self.reading.names, declarations)
        tasks, left_out = [], []
        for name, entry in self.tasks.items():
            task_id, path, problems = self._file_id(name), Path(entry.path), Problems()
            data = self.folder.read(entry, problems=problems)
            steps = () if data is None else reader.read(data, show(entry.rel), task_id, problems)
            if problems:
                every = {*problems.found, *problems.follows}
                left_out.append(LeftOut(task_id, name, path, tuple(sorted(every)), frozenset(problems.follows)))
            else:
                tasks.append(Task(task_id, name, path, steps))
        return tuple(tasks), tuple(left_out)

    def _evals(self) -> dict[str, Eval]:
        evals: dict[str, Eval] = {}
        for name, entry in self.evals.items():
            table = self.reading.table(entry)
            if table is None:
                continue
            entity_id, tasks = read_eval(self.reading, table, name)
            other = evals.setdefault(entity_id, Eval(entity_id, name, Path(entry.path), tasks))
            if other.name != name:
                message = f"has the id {entity_id} of evals/{other.path.name}"
                self.problems.add(show(entry.rel), message, "rename one of them")
        return evals


def _merged(pulled: Mapping[str, T], own: Mapping[str, T]) -> dict[str, T]:
    """What is elsewhere and what is the bundle's own, in order of ids."""
    return dict(sorted({**pulled, **own}.items()))

"""What a bundle is once it was read: plain frozen data, with every reference of its tasks rewritten to an id.

Mappings are ordinary dicts in id order; treat them as read-only. Nothing here touches the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env_core.bundle.names import nfc
from agent_env_core.errors import Problem

Step = Mapping[str, Any]
"""One step of a task as its file wrote it, with references as ids. Unknown fields are kept."""

ALL_SPLIT = "all"
"""The split that holds every task; no eval may bear this name."""


@dataclass(frozen=True)
class EnvImage:
    """Where a container image comes from: a folder to build, or a registry reference. Exactly one of the two is set.

    Attributes:
        context: The build context, as an absolute path.
        dockerfile: The Dockerfile's POSIX path relative to ``context``.
        ref: A reference that names its registry.
    """

    context: Path | None = None
    dockerfile: str = "Dockerfile"
    ref: str | None = None

    def __post_init__(self) -> None:
        if (self.context is None) == (self.ref is None):
            raise ValueError("an EnvImage has either a context or a ref")


@dataclass(frozen=True)
class Env:
    """An environment: a server that runs in a container and offers tools, or several of them under one id.

    Attributes:
        id: Its id in the store of envs.
        name: Its folder's name.
        type: ``mcp_server``, or ``multi`` for one that is made of others.
        environment_name: The name under which the server registers itself; directives address it by this name. Those to
            a ``multi`` env address its children by theirs.
        env_provider_type: ``gateway`` or ``server``.
        image: What it runs; None for a ``multi`` env, whose children run.
        path: Its folder; the store map's file for an env that is known by its image alone.
        children: The envs that a ``multi`` env is made of, at least one, each with an environment name of its own.
    """

    id: str
    name: str
    type: str
    environment_name: str
    env_provider_type: str
    image: EnvImage | None
    path: Path
    children: tuple[Env, ...] = ()

    def __post_init__(self) -> None:
        if (self.image is None) == (not self.children):
            raise ValueError("an Env has either an image or children")

    @property
    def servers(self) -> tuple[Env, ...]:
        """The envs that run: its children, or itself where it has none."""
        return self.children or (self,)


@dataclass(frozen=True)
class Agent:
    """An agent that a task can deploy. A played episode puts the trainer's model in its place and never runs it.

    Attributes:
        id: Its id in the store of agents.
        name: Its folder's name.
        type: Always ``a2a_agent`` so far.
        image: What it runs.
        path: Its folder.
        default_env_vars: Environment variables of its container.
        metadata: ``default_model``, ``min_disk_size_gb`` and ``takes_credentials``, those that are set.
    """

    id: str
    name: str
    type: str
    image: EnvImage
    path: Path
    default_env_vars: Mapping[str, str] = field(default_factory=dict, hash=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Artifact:
    """Files that tasks use: a code verifier (type ``file``), a tree, an image, a seed for an env, a CLI.

    Attributes:
        id: Its id in the store of artifacts, which skills share.
        name: Its folder's name.
        type: ``file``, ``file_artifact_universe``, ``docker_image``, ``environment``, ``environment_universe``,
            or ``cli``.
        path: Its folder.
        files: Its content: POSIX paths relative to ``path``, sorted; ``artifact.toml`` is not content.
        description: What its author says about it.
        settings: The other keys of its ``artifact.toml``; references among them are ids.
    """

    id: str
    name: str
    type: str
    path: Path
    files: tuple[str, ...]
    description: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def file(self) -> Path:
        """The one file of an artifact of type ``file``."""
        (only,) = self.files
        return self.path / only

    @property
    def parts(self) -> tuple[str, ...]:
        """The ids of the artifacts that it is made of: an ``environment``'s file, an ``environment_universe``'s seeds.

        A universe that keeps its seeds in folders has artifacts of its own made of them, which it names here too.
        """
        file = self.settings.get("file")
        return (file,) if file else (*self.settings.get("environment_artifacts", ()), *self.settings.get("derived", ()))


@dataclass(frozen=True)
class Skill:
    """Instructions for an agent: ``SKILL.md`` and what lies beside it.

    Attributes:
        id: Its id in the store of artifacts, which skills share.
        name: Its folder's name.
        path: Its folder.
        files: Its content: POSIX paths relative to ``path``, sorted.
        description: From the front matter.
    """

    id: str
    name: str
    path: Path
    files: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class Task:
    """A task: steps that deploy, prompt and score.

    Attributes:
        id: Its id in the store of tasks.
        name: Its file's name without ``.json``.
        path: Its file.
        steps: In the file's order.
        bundle: The bundle it belongs to; set when the bundle is made.
    """

    id: str
    name: str
    path: Path
    steps: tuple[Step, ...] = field(hash=False)
    bundle: Bundle = field(init=False, repr=False, compare=False)


@dataclass(frozen=True)
class LeftOut:
    """A task that can't be used. It stands in no split, and stops no other task.

    Attributes:
        id: The id that it would have.
        name: Its file's name without ``.json``.
        path: Its file.
        problems: Why, sorted; each with its file and step.
        follows: Those of them that something else in the bundle is the cause of.
    """

    id: str
    name: str
    path: Path
    problems: tuple[Problem, ...]
    follows: frozenset[Problem] = frozenset()


@dataclass(frozen=True)
class Eval:
    """A named selection of a bundle's tasks; a server offers it as a split of the same name.

    Attributes:
        id: Its id in the store of evals.
        name: Its file's name without ``.toml``.
        path: Its file.
        tasks: Task ids in the file's order, those of tasks that were left out included.
    """

    id: str
    name: str
    path: Path
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class Bundle:
    """A bundle folder, read and checked.

    Attributes:
        name: The folder's name.
        root: The folder, absolute and free of symlinks.
        id_root: What the derived ids of its entities begin with.
        description: The first line of text in its README, or empty.
        envs: By id.
        agents: By id.
        artifacts: By id.
        skills: By id.
        tasks: In order of their names.
        evals: By id.
        left_out: The tasks that can't be used, in order of their names.
        faults: What is wrong with envs, agents, artifacts and skills, or isn't run by this version. Such an entity is
            not in the bundle, and the tasks that name it are left out.
        ignored: What lies in the folder and is no part of the bundle: POSIX paths relative to ``root``.

    Entities of the store map and of installed bundles that this bundle names stand beside its own.
    """

    name: str
    root: Path
    id_root: str
    description: str = ""
    envs: Mapping[str, Env] = field(default_factory=dict, hash=False)
    agents: Mapping[str, Agent] = field(default_factory=dict, hash=False)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict, hash=False)
    skills: Mapping[str, Skill] = field(default_factory=dict, hash=False)
    tasks: tuple[Task, ...] = ()
    evals: Mapping[str, Eval] = field(default_factory=dict, hash=False)
    left_out: tuple[LeftOut, ...] = ()
    faults: tuple[Problem, ...] = ()
    ignored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for task in self.tasks:
            object.__setattr__(task, "bundle", self)  # the one cycle: a task finds its entities through its bundle

    def without_tasks(self) -> Problem:
        """What to say of it if it has no task: one whose tasks are generated has none in a fresh clone."""
        generator = self.root / "generator"
        generated = (generator / "__main__.py").is_file()
        return Problem(
            "tasks", "there is no task", f"its generator makes them: python {generator}" if generated else "add one"
        )

    def splits(self) -> dict[str, tuple[Task, ...]]:
        """What a server offers: ``all`` in the order of names, then each eval in the order of its file."""
        by_id = {task.id: task for task in self.tasks}
        splits = {ALL_SPLIT: self.tasks}
        for e in self.evals.values():
            splits[e.name] = tuple(by_id[task_id] for task_id in e.tasks if task_id in by_id)
        return splits

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is to be mended, though it can be used; what only follows from another problem isn't told."""
        own = (problem for one in self.left_out for problem in one.problems if problem not in one.follows)
        return tuple(sorted({*self.faults, *own}))

    def find(self, kind: str, value: str) -> Env | Agent | Artifact | Skill | None:
        """The entity of that name or id.

        Args:
            kind: ``env``, ``agent``, ``artifact`` (a skill is one too) or ``skill``.
            value: A name or an id.
        """
        stores: dict[str, list[Mapping[str, Env | Agent | Artifact | Skill]]] = {
            "env": [self.envs],
            "agent": [self.agents],
            "artifact": [self.artifacts, self.skills],
            "skill": [self.skills],
        }
        entities = [entity for store in stores.get(kind, ()) for entity in store.values()]
        return next((entity for entity in entities if nfc(value) in (entity.id, entity.name)), None)

    def seeds(self, artifact_id: str) -> dict[str, Path]:
        """The files that an artifact seeds an env's servers with, by environment name.

        Args:
            artifact_id: An artifact of type ``environment`` or ``environment_universe``.

        Raises:
            KeyError: It isn't in the bundle, or isn't of either type.
        """
        artifact = self.artifacts[artifact_id]
        if artifact.type == "environment":
            held = self.artifacts[artifact.settings["file"]] if "file" in artifact.settings else artifact
            return {artifact.settings["environment_name"]: held.file}
        if artifact.type != "environment_universe":
            raise KeyError(f"{artifact.name!r} is of type {artifact.type}, and seeds nothing")
        return {
            name: file
            for part in artifact.parts
            if self.artifacts[part].type == "environment"
            for name, file in self.seeds(part).items()
        }

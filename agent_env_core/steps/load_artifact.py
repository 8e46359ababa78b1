"""``load_artifact``: puts files into a sandbox, or a seed into the servers of an env."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.envs import data
from agent_env_core.envs.data import Seed, Seeds
from agent_env_core.envs.deployment import Deployment
from agent_env_core.errors import EpisodeError, describe
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.files import MAX_BYTES, entity_files, put_files, unpack
from agent_env_core.steps.placed import File, PlacedSandbox, SandboxOrder

if TYPE_CHECKING:
    from agent_env_core.bundle import Artifact, Bundle

SEEDS = ("environment", "environment_universe")
"""Types of artifacts that fill the servers of an env."""
INTO_SANDBOX, INTO_ENV, UNPACKED = "/loaded", "/tmp/file_artifacts", "/app/files"  # noqa: S108 - the format's own places
"""Where files go that nothing else is said of: into a sandbox; an agent's sandbox or an env's, and from a URL; a seed
unpacked as files."""
DOWNLOAD_SECONDS = 600.0


class Pinned(BaseModel):
    """One of several artifacts."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    id: str = Field(min_length=1)
    version: int | None = None


class Download(BaseModel):
    """A file of the web: where it is, and what it is called here."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    url: str = Field(pattern=r"^https?://")
    filename: str = ""

    @property
    def name(self) -> str:
        """What it is called here; by default as the address ends."""
        return self.filename or posixpath.basename(unquote(urlsplit(self.url).path)) or "download"

    @model_validator(mode="after")
    def _a_name(self) -> Download:
        if "/" in self.name or self.name in (".", ".."):
            raise ValueError(f"filename {self.name!r} must be a name without folders")
        return self


class LoadArtifact(TaskStep):
    """Loads one thing into one place.

    What: ``artifact_id``, ``artifacts``, ``urls``, ``artifact_from_step_id`` or ``collected_artifacts_step_id``. Where:
    an env, an agent's sandbox, a sandbox, or a container in one. A seed (``environment``, ``environment_universe``)
    that goes into an env fills its servers; all else is files.

    Attributes:
        artifact_id: An artifact of the bundle, or the output of a ``snapshot_env``.
        artifacts: Several artifacts.
        urls: Files of the web.
        artifact_from_step_id: A step that made an artifact: ``snapshot_env`` or ``collect_artifacts``.
        collected_artifacts_step_id: A ``collect_artifacts`` step.
        env_id: The env.
        env_step_id: The ``deploy_env`` step whose deployment is meant; None takes any.
        agent_name: The agent.
        sandbox_name: The sandbox.
        container_name: A container in it.
        destination_path: The folder for files.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("env_id", "env"),
        Reference("artifact_id", "artifact", pin="artifact_version"),
        Reference("artifacts.id", "artifact", pin="version"),
    )

    artifact_id: str | None = Field(default=None, min_length=1)
    artifact_version: int | None = None
    artifacts: list[Pinned] = Field(default_factory=list)
    urls: list[Download] = Field(default_factory=list)
    artifact_from_step_id: str | None = None
    collected_artifacts_step_id: str | None = None
    env_id: str | None = Field(default=None, min_length=1)
    env_step_id: str | None = None
    agent_name: str | None = Field(default=None, min_length=1)
    sandbox_name: str | None = Field(default=None, min_length=1)
    container_name: str | None = None
    destination_path: str | None = Field(default=None, pattern="^/")

    @field_validator("urls", mode="before")
    @classmethod
    def _plain_urls(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [{"url": item} if isinstance(item, str) else item for item in value]

    @model_validator(mode="after")
    def _one_thing_one_place(self) -> LoadArtifact:
        what = ("artifact_id", "artifacts", "urls", "artifact_from_step_id", "collected_artifacts_step_id")
        given = [name for name in what if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"set exactly one of {', '.join(what)}; it sets {', '.join(given) or 'none'}")
        where = [name for name in ("env_id", "agent_name", "sandbox_name") if getattr(self, name)]
        if not where:
            raise ValueError("set where to: env_id, agent_name or sandbox_name")
        if len(where) > 1 and where != ["env_id", "agent_name"]:  # those two together are for a CLI, see misfits
            raise ValueError(f"set one of env_id, agent_name and sandbox_name; it sets {', '.join(where)}")
        if self.container_name and not self.sandbox_name:
            raise ValueError(f"container_name={self.container_name!r} needs sandbox_name")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds versions, which need a store; and the one use of two places."""
        lines = super().refusals(played) + self.unsupported(artifact_version=None)
        lines += [f"artifacts.version={one.version!r} isn't supported yet" for one in self.artifacts if one.version]
        if self.env_id and self.agent_name:
            lines.append(f"agent_name={self.agent_name!r} with env_id is for a CLI of the env, and none can be loaded")
        return lines

    def misfits(self, bundle: Bundle) -> list[str]:
        """Artifacts that can't be loaded, or whose seeds are for servers that the env hasn't."""
        lines = []
        for name in self._named():
            artifact = bundle.artifacts.get(name)
            if artifact is not None and artifact.type in ("cli", "docker_image"):
                lines.append(f"artifact_id={artifact.name!r} is of type {artifact.type}, which can't be loaded")
            env = bundle.envs.get(self.env_id or "")
            if artifact is None or env is None or artifact.type not in SEEDS:
                continue
            servers = [server.environment_name for server in env.servers]
            for seeded in _seed_artifacts(bundle, artifact):
                if (asked := seeded.settings.get("environment_name")) not in servers:
                    has = ", ".join(servers)
                    lines.append(
                        f"artifact_id={artifact.name!r} seeds a server {asked!r}; the env {env.name!r} has: {has}"
                    )
        return lines

    async def run(self, run: RunContext) -> None:
        """Loads it."""
        names = self._made(run) if self.artifact_from_step_id else list(self._named())
        if self.env_id:
            seeds = [name for name in names if _is_seed(run, name)]
            for name in seeds:
                await self._seed(run.env_of(self.env_id, self.env_step_id), _seeds(run, name))
            names = [name for name in names if name not in seeds]
            if seeds and not names:
                return
        files, usual = await self._files(run, names)
        place = await self._place(run)
        await put_files(place, self.destination_path or usual, files, self.id)

    async def undo(self, run: RunContext) -> None:
        """Forgets the files. A seed needs nothing: whatever is loaded next takes its place."""
        run.places.forget_loads(self.id)

    def _named(self) -> Iterator[str]:
        if self.artifact_id:
            yield self.artifact_id
        yield from (one.id for one in self.artifacts)

    def _made(self, run: RunContext) -> list[str]:
        """The id of what ``artifact_from_step_id`` made; none where it collected files."""
        if self.artifact_from_step_id in run.collected:
            return []
        for made in run.metadata.get("env_snapshotted_universes", []):
            if made["step_id"] == self.artifact_from_step_id:
                return [made["id"]]
        raise EpisodeError("setup", f"artifact_from_step_id={self.artifact_from_step_id!r}: that step made no artifact")

    async def _seed(self, env: Deployment, seeds: Seeds) -> None:
        servers = {server.card.name: server for server in env.servers}
        strangers = sorted(set(seeds) - set(servers))
        if strangers:
            has = ", ".join(servers)
            raise EpisodeError(
                "setup", f"a seed is for the server {strangers[0]!r}; the env {env.env.name!r} has: {has}"
            )
        for name, seed in seeds.items():
            await data.load(servers[name], seed)

    async def _files(self, run: RunContext, names: list[str]) -> tuple[list[File], str]:
        """The files to put, and the folder they go to where nothing is said of it."""
        usual = INTO_SANDBOX if self.sandbox_name else INTO_ENV
        if self.urls:
            return await _download(self.urls), INTO_ENV
        step = self.collected_artifacts_step_id or self.artifact_from_step_id
        if step is not None and not names:
            if step not in run.collected:
                raise EpisodeError("setup", f"collected_artifacts_step_id={step!r}: that step collected no files")
            return list(run.collected[step]), usual
        files: list[File] = []
        for name in names:
            if name in run.snapshots:
                snapshot = run.snapshots[name].values()
                files += [file for seed in snapshot for file in unpack(File(seed.name, seed.data))]
            else:
                files += entity_files(run.bundle, name)
        return files, UNPACKED if any(_is_seed(run, name) for name in names) else usual

    async def _place(self, run: RunContext) -> PlacedSandbox:
        if self.sandbox_name:
            return await run.places.find(self.sandbox_name, self.container_name)
        if self.env_id is None:
            return run.agent_sandbox(self.agent_name or "")
        env = run.env_of(self.env_id, self.env_step_id)
        if len(env.servers) > 1:
            names = ", ".join(server.card.name for server in env.servers)
            reason = f"env_id: files can be put into an env of one server, and {env.env.name!r} has several: {names}"
            raise EpisodeError("setup", reason)
        return _of_env(env, run)


def _of_env(env: Deployment, run: RunContext) -> PlacedSandbox:
    """An env's sandbox as files are put into one."""
    from agent_env_core.sandbox.contract import Image

    image = env.servers[0].env.image
    order = SandboxOrder(Image(ref=image.ref, context=image.context) if image else Image(ref=env.env.name), ttl=1.0)
    return PlacedSandbox(env.env.name, "container", env.sandbox, order, run.places.capabilities)


def _is_seed(run: RunContext, name: str) -> bool:
    artifact = run.bundle.artifacts.get(name)
    return name in run.snapshots or (artifact is not None and artifact.type in SEEDS)


def _seeds(run: RunContext, name: str) -> Seeds:
    if name in run.snapshots:
        return run.snapshots[name]
    seeds = {}
    for artifact in _seed_artifacts(run.bundle, run.bundle.artifacts[name]):
        file = next((run.bundle.artifacts[part].file for part in artifact.parts), None) or artifact.file
        try:
            seeds[artifact.settings["environment_name"]] = Seed(file.name, file.read_bytes())
        except OSError as exc:
            raise EpisodeError("setup", f"the seed {artifact.name!r} can't be read: {exc.strerror or exc}") from exc
    return seeds


def _seed_artifacts(bundle: Bundle, artifact: Artifact) -> Iterator[Artifact]:
    """The ``environment`` artifacts that one is, or is made of."""
    if artifact.type == "environment":
        yield artifact
    elif artifact.type == "environment_universe":
        yield from (bundle.artifacts[part] for part in artifact.parts if part in bundle.artifacts)


async def _download(urls: list[Download]) -> list[File]:
    """The files at some addresses, within bounds of size and time."""
    import httpx

    from agent_env_core.envs.http import TooLarge, fetch

    files: list[File] = []
    left = MAX_BYTES
    async with httpx.AsyncClient(timeout=None, follow_redirects=True) as client:  # noqa: S113 - bounded below
        for one in urls:
            try:
                async with asyncio.timeout(DOWNLOAD_SECONDS):
                    answer = await fetch(client, "GET", one.url, {}, limit=left)
            except TimeoutError as exc:
                reason = f"urls: {one.url} didn't come within {DOWNLOAD_SECONDS:g}s"
                raise EpisodeError("setup", reason, retryable=True) from exc
            except (httpx.HTTPError, TooLarge) as exc:
                retryable = isinstance(exc, httpx.TransportError)
                raise EpisodeError("setup", f"urls: {one.url}: {describe(exc)}", retryable=retryable) from exc
            if not answer.ok:
                raise EpisodeError("setup", f"urls: {one.url} answered {answer.status}", retryable=answer.status >= 500)
            left -= len(answer.body)
            files.append(File(one.name, answer.body))
    return files


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``load_artifact``."""
    register("load_artifact", LoadArtifact)

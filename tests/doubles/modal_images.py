"""Images of the double of Modal: recipes that are carried out in a box, step by step."""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import posixpath
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from box import PATH, Box, Root
from modal_proto import api_pb2 as api

from agent_env_core.bundle.dockerfile import Instruction, Stage, parse_dockerfile

BASES = ("python:3.11-slim", "python:3.12-slim", "docker.io/library/python:3.11-slim")
"""References that the registry behind the double has. All of them are this machine with the tests' own Python."""

INSTALLERS = ("pip install", "apt-get")
"""Commands that a box without a network can't run, and needn't: it has what the tests' own Python has."""


class BuildFailed(Exception):
    """A build that failed; the text is its output."""


@dataclass
class Built:
    """An image: its recipe, and what came of it."""

    recipe: api.Image
    root: asyncio.Task[Root] | None = None
    log: list[str] = field(default_factory=list)
    entrypoint: tuple[str, ...] = ()


class Images:
    """All images, and the files they are made from."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="double-images-"))
        self.files: dict[str, bytes] = {}
        self.mounts: dict[str, dict[str, tuple[str, int]]] = {}
        self.known: dict[str, Built] = {}
        self.builds = 0

    def mount(self, asked: api.MountGetOrCreateRequest) -> str:
        """Files by name; named by content."""
        files = {each.filename: (each.sha256_hex, each.mode) for each in asked.files}
        name = "mo-" + hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
        self.mounts[name] = files
        return name

    def image(self, recipe: api.Image) -> str:
        """An image of this recipe; named by it, not built yet."""
        name = "im-" + hashlib.sha256(recipe.SerializeToString(deterministic=True)).hexdigest()[:22]
        self.known.setdefault(name, Built(recipe))
        return name

    async def root(self, name: str) -> Root:
        """What an image is, once it's built; whoever asks meanwhile waits for the same build."""
        built = self.known[name]
        if built.root is None:
            built.root = asyncio.create_task(self._build(name, built))
        return await asyncio.shield(built.root)

    async def _build(self, name: str, built: Built) -> Root:
        self.builds += 1
        recipe = built.recipe
        bases = {each.docker_tag: await self.root(each.image_id) for each in recipe.base_images}
        inherited = {each.docker_tag: self.known[each.image_id].entrypoint for each in recipe.base_images}
        dockerfile = parse_dockerfile("\n".join(recipe.dockerfile_commands) + "\n")
        stage = dockerfile.final
        if stage.base not in bases and stage.base not in BASES:
            built.log.append(f"{stage.base}: not found\n")
            raise BuildFailed(f"{stage.base}: not found")
        start = bases.get(stage.base, Root())
        built.entrypoint = inherited.get(stage.base, ()) if stage.entrypoint is None else stage.entrypoint
        steps = [each for each in stage.instructions if each.keyword in ("RUN", "COPY", "ADD")]
        root = replace(start, env={**start.env, **stage.env}, workdir=stage.workdir or start.workdir)
        if not steps:
            return root
        box = await Box.start(start)
        try:
            await _carry_out(box, stage, steps, self.mounts.get(recipe.context_mount_id, {}), self.files, built.log)
            done = await box.commit(self.folder / name)
        finally:
            await box.stop()
        return replace(root, layer=done.layer)


async def _carry_out(
    box: Box,
    stage: Stage,
    steps: list[Instruction],
    context: Mapping[str, tuple[str, int]],
    files: Mapping[str, bytes],
    log: list[str],
) -> None:
    where = box.root.workdir
    for step in stage.instructions:
        if step.keyword == "WORKDIR":
            where = posixpath.join(where, step.arguments[0])
        elif step in steps and step.keyword == "RUN":
            await _run(box, step, stage, where, log)
        elif step in steps:
            copied = _copied(step, where, context)
            if not copied:
                raise BuildFailed(f"COPY {step.raw}: not found")
            await box.inside(partial(_write, {to: (files[sha], mode) for to, (sha, mode) in copied.items()}))


async def _run(box: Box, step: Instruction, stage: Stage, where: str, log: list[str]) -> None:
    command = step.arguments[0]
    if any(word in command for word in INSTALLERS):
        return
    await box.inside(lambda: Path(where).mkdir(parents=True, exist_ok=True))
    argv = step.arguments if step.exec_form else (*stage.shell, command)
    env = {**stage.env, "PATH": PATH, "PYTHONDONTWRITEBYTECODE": ""}
    process = await box.spawn(argv, env=env, cwd=where)
    process.stdin.close()
    out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
    log.append((out + err).decode(errors="replace"))
    if code := await process.wait():
        raise BuildFailed(f"RUN {command}: exit code {code}")


def _copied(step: Instruction, where: str, context: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Where the files of a COPY go."""
    *sources, target = step.arguments
    into = target.endswith("/") or target in (".", "./") or len(sources) > 1
    target = posixpath.join(where, target)
    found: dict[str, tuple[str, int]] = {}
    for name, file in context.items():
        path = name.lstrip("/")
        for source in (posixpath.normpath(each).lstrip("/") for each in sources):
            if source == "." or path.startswith(f"{source}/"):
                found[posixpath.normpath(posixpath.join(target, posixpath.relpath(path, source)))] = file
            elif fnmatch.fnmatch(path, source):
                found[posixpath.normpath(posixpath.join(target, posixpath.basename(path)) if into else target)] = file
    return found


def _write(files: Mapping[str, tuple[bytes, int]]) -> None:
    for name, (data, mode) in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode & 0o7777 or 0o644)

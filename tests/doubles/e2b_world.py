"""What stands behind the double of E2B: an account with its sandboxes, templates, limits and scripted faults."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import io
import re
import shutil
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from box import PATH, Box, Process, Root

API_KEY = "e2b_" + "0123456789abcdef" * 2 + "01234567"
"""The only key that is let in."""

BASES = re.compile(r"(docker\.io/library/)?(python|debian)(:[\w.-]+)?$")
"""Images that a registry is taken to have; all of them are this machine."""

IMAGE_ENV = {"PATH": PATH, "LANG": "C.UTF-8", "IMAGE_SAYS": "hello"}
"""What those images set: steps of a build see it, commands in a sandbox don't."""

ENVD = "0.6.9"


def now() -> dt.datetime:
    """The time, as E2B tells it."""
    return dt.datetime.now(dt.UTC)


@dataclass
class Fault:
    """Something that goes wrong.

    Attributes:
        call: The beginning of ``METHOD /path`` that it happens to.
        status: The answer; 0 hangs up without one.
        message: What the answer says.
        headers: Its headers.
        times: How often.
        after: The work is done first.
        events: Of a stream, how many pieces are passed on before it is cut.
        seconds: It is late by so much, and then all goes well where ``status`` is None.
    """

    call: str
    status: int | None = 500
    message: str = "scripted"
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1 << 30
    after: bool = False
    events: int | None = None
    seconds: float = 0.0


class Sandbox:
    """One sandbox, as the control plane and envd know it."""

    def __init__(self, asked: Mapping[str, Any], template: Template) -> None:
        self.id = "i" + uuid.uuid4().hex[:19]
        self.asked, self.template = asked, template
        self.metadata: dict[str, str] = asked.get("metadata") or {}
        self.env: dict[str, str] = asked.get("envVars") or {}
        self.token, self.traffic = "ea_" + uuid.uuid4().hex, "ta_" + uuid.uuid4().hex
        self.open_ports = (asked.get("network") or {}).get("allowPublicTraffic", True)
        self.started = now()
        self.ends = self.started + dt.timedelta(seconds=asked.get("timeout", 300))
        self.state = "running"
        self.box: Box
        self.commands: dict[int, Any] = {}

    @property
    def alive(self) -> bool:
        """Whether calls into it are let through."""
        return self.state == "running"


@dataclass
class Template:
    """A template, with the state of its newest build."""

    name: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:20])
    build: str = field(default_factory=lambda: str(uuid.uuid4()))
    cpu: int = 2
    memory: int = 1024
    status: str = "waiting"
    steps: list[dict[str, Any]] = field(default_factory=list)
    image: str = ""
    log: list[tuple[dt.datetime, str]] = field(default_factory=list)
    why: str = ""
    start: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    root: Root | None = None
    task: asyncio.Task[None] | None = None


class World:
    """One account.

    Attributes:
        concurrent: Sandboxes it may have at once.
        per_second: Sandboxes it may create in a second.
        longest: Seconds that one may live.
        held_up: Creates wait until it is set; None lets them be.
        calls: Every call, as ``METHOD /path``.
        unknown: Calls that nobody answers; a test must fail where there is one.
        bodies: The bodies of creates.
        peak: The most sandboxes that there were at once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.concurrent, self.per_second, self.longest = 1 << 30, 1 << 30, 86400.0
        self.held_up: threading.Event | None = None
        self.sandboxes: dict[str, Sandbox] = {}
        self.templates: dict[str, Template] = {}
        self.files: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self.unknown: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.builds = 0
        self.peak = 0
        self._making = 0
        self._made: list[float] = []
        self._timer: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls) -> Any:
        """A world whose sandboxes end when their time is over, until the context ends."""
        folder = Path(tempfile.mkdtemp(prefix="e2b-double-"))
        world = cls(folder)
        world._timer = asyncio.create_task(world._tick())
        try:
            yield world
        finally:
            world._timer.cancel()
            builds = [t.task for t in world.templates.values() if t.task]
            for task in builds:
                task.cancel()
            await asyncio.gather(world._timer, *builds, return_exceptions=True)
            for sandbox in list(world.sandboxes.values()):
                await world.end(sandbox)
            shutil.rmtree(folder, ignore_errors=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for sandbox in [s for s in self.sandboxes.values() if s.alive and now() > s.ends]:
                await self.end(sandbox)

    # -- sandboxes

    def refusal(self) -> tuple[int, str] | None:
        """Why no sandbox may be created now, as status and words; with None, the place for one is taken."""
        self._made = [moment for moment in self._made if time.monotonic() - moment < 1]
        if len(self._made) >= self.per_second:
            return 429, "you are creating sandboxes too fast"
        if len(self.sandboxes) + self._making >= self.concurrent:
            return 429, f"you have reached the maximum number of concurrent E2B sandboxes ({self.concurrent})"
        self._made.append(time.monotonic())
        self._making += 1
        return None

    async def create(self, asked: Mapping[str, Any], template: Template) -> Sandbox:
        """A new sandbox, in the place that :meth:`refusal` took."""
        sandbox = Sandbox(asked, template)
        try:
            if self.held_up is not None:
                await asyncio.to_thread(self.held_up.wait)
            sandbox.box = await Box.start(template.root)
            self.sandboxes[sandbox.id] = sandbox
            self.peak = max(self.peak, len(self.sandboxes))
        finally:
            self._making -= 1
        return sandbox

    async def end(self, sandbox: Sandbox) -> None:
        """Ends one."""
        self.sandboxes.pop(sandbox.id, None)
        sandbox.state = "ended"
        await sandbox.box.stop()

    async def labelled(self, labels: Mapping[str, str]) -> list[str]:
        """The ids of the sandboxes that carry labels; what is being made counts as one."""
        found = [each.id for each in self.sandboxes.values() if labels.items() <= each.metadata.items()]
        return [*found, *("one in the making" for _ in range(self._making))]

    def find(self, name: str) -> Template | None:
        """A template by its name or id."""
        for template in self.templates.values():
            if name.partition(":")[0] in (template.name, template.id):
                return template
        return None

    # -- builds

    def request(self, name: str, cpu: int, memory: int) -> Template:
        """A new build of a name; one under way is cancelled, as E2B does."""
        found = self.find(name)
        if found is not None and found.task is not None and not found.task.done():
            found.task.cancel()
            found.status, found.why = "error", "build was cancelled"
        template = Template(name, cpu=cpu, memory=memory)
        if found is not None:
            template.id, template.tags, template.root = found.id, found.tags, found.root
        self.templates[template.id] = template
        return template

    def start_build(self, template: Template, asked: Mapping[str, Any]) -> None:
        """Builds it, behind the answer."""
        template.image, template.steps = asked.get("fromImage", ""), asked.get("steps", [])
        template.status = "building"
        template.start = asked.get("startCmd", "")
        template.task = asyncio.create_task(self._build(template))

    async def _build(self, template: Template) -> None:
        self.builds += 1
        try:
            if not BASES.match(template.image):
                raise BuildFailed(f"failed to pull the image {template.image}: not found")
            if template.start:
                raise BuildFailed(f"the start command {template.start!r} runs at the build, and never got ready")
            builder = Builder(self, template)
            template.root = await builder.run(self.folder / template.build)
            template.tags["default"] = template.build
            template.status = "ready"
        except BuildFailed as exc:
            template.status, template.why = "error", str(exc)


class BuildFailed(Exception):
    """A step of a build went wrong."""


class Builder:
    """Does the steps of one build, in a box of its own."""

    def __init__(self, world: World, template: Template) -> None:
        self._world, self._template = world, template
        self._env, self._workdir = dict(IMAGE_ENV), "/"

    async def run(self, layer: Path) -> Root:
        """Everything that the steps left, as a root."""
        box = await Box.start()
        try:
            for number, step in enumerate(self._template.steps, 1):
                args = step.get("args", [])
                self._say(f"[builder {number}/{len(self._template.steps)}] {step['type']} {' '.join(args)}")
                await self._step(box, step["type"], args, step.get("filesHash"))
            root = await box.commit(layer)
        finally:
            await asyncio.shield(box.stop())
        return Root(root.layer)  # neither variables nor folder: envd gives a command neither

    def _say(self, line: str) -> None:
        self._template.log.append((now(), line))

    async def _step(self, box: Box, kind: str, args: list[str], files: str | None) -> None:
        match kind:
            case "USER":
                pass
            case "WORKDIR":
                self._workdir = str(Path(self._workdir, args[0]))
                await self._shell(box, f"mkdir -p '{self._workdir}'", "/")
            case "ENV":
                self._env |= dict(zip(args[::2], args[1::2], strict=True))
            case "COPY":
                await self._copy(box, args[0], args[1], self._world.files[files or ""])
            case "RUN":
                if not args[0].startswith("pip install"):  # what it would install is this machine's already
                    await self._shell(box, args[0], self._workdir)
            case _:
                raise BuildFailed(f"unknown step {kind}")

    async def _shell(self, box: Box, line: str, cwd: str) -> None:
        process: Process = await box.spawn(["/bin/bash", "-c", line], env=self._env, cwd=cwd)
        process.stdin.close()
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        for said in (out + err).decode(errors="replace").splitlines():
            self._say(said)
        if (code := await process.wait()) != 0:
            raise BuildFailed(f"failed to run command '{line}': exit status {code}")

    async def _copy(self, box: Box, source: str, target: str, data: bytes) -> None:
        """Docker's rule: a folder's content goes into the target; so does a file where the target is a folder."""
        place = Path(self._workdir, target)

        def unpack() -> None:
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                names = [member.name for member in tar if member.isfile()]
                alone = len(names) == 1 and names[0] == source.removeprefix("./")
                if alone and not (target.endswith("/") or place.is_dir()):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    file = tar.extractfile(names[0])
                    assert file is not None
                    place.write_bytes(file.read())
                    return
                place.mkdir(parents=True, exist_ok=True)
                tar.extractall(place, filter="fully_trusted")

        await box.inside(unpack)

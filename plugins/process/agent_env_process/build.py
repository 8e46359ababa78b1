"""Carrying out a plan: a folder with the copied files and a Python environment, compiled.

The folder is built in its final place, since a Python environment can't be moved, under a lock that all processes of
the machine respect. The image's facts are written last and in one step: until then the folder is a ruin that the next
build clears away.
"""

from __future__ import annotations

import asyncio
import fcntl
import glob
import logging
import os
import shlex
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env_core.errors import ConfigError, ImageError
from agent_env_process.context import CopyFault
from agent_env_process.files import remove_tree
from agent_env_process.images import ImageCache, PreparedImage
from agent_env_process.output import Kept
from agent_env_process.paths import SYSTEM, PathMap, absolute
from agent_env_process.plan import Copy, Folder, Pip, Plan
from agent_env_process.procs import end_all
from agent_env_process.spawn import Child

log = logging.getLogger(__name__)

HEARTBEAT = 15.0
"""Seconds after which a step that still runs says so."""

OUTPUT_LINES = 30
"""Lines of a failed command's output that its error holds."""

#: What a build may see of this process's environment: the search path, how to reach a package index, and no secrets
#: beyond that. Names that end in ``*`` stand for all that begin so.
_FOR_BUILDS = (
    "PATH", "HOME", "LANG", "LC_*", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PIP_*", "XDG_CACHE_HOME", "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "ALL_PROXY",
)  # fmt: skip


async def build(cache: ImageCache, plan: Plan) -> PreparedImage:
    """Makes an image, unless this or another process has.

    Raises:
        ImageError: A step failed; nothing is left of the image.
        ConfigError: The cache can't be written.
    """
    try:
        cache.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise ConfigError(
            f"process: can't write to {cache.folder} ({exc.strerror}); set XDG_CACHE_HOME to a local folder"
        ) from exc
    async with _locked(cache.folder / f"{plan.ref}.lock"):
        found = cache.find(plan.ref)
        if found is not None:
            return found
        place = cache.place(plan.ref)
        await asyncio.to_thread(remove_tree, place)
        try:
            return await _Builder(place, plan).run()
        except BaseException:
            await asyncio.shield(asyncio.to_thread(remove_tree, place))
            raise


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Holds a lock between processes; asked for with growing pauses, so that waiting can be cancelled."""
    pause, waited = 0.01, 0.0
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waited < HEARTBEAT <= waited + pause:
                    log.info("waiting for another process that prepares the same image (%s)", path.stem)
            await asyncio.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, 0.5)
        yield


class _Builder:
    """One build in its folder."""

    def __init__(self, place: Path, plan: Plan) -> None:
        self.place, self.plan = place, plan
        self.tree = place / "tree"
        self.python = place / "venv" / "bin" / "python"
        self.owned: list[str] = []

    async def run(self) -> PreparedImage:
        plan, began = self.plan, time.monotonic()
        with_pip = any(isinstance(step, Pip) for step in plan.steps)
        log.info("preparing %s with Python %s", plan.dockerfile, plan.python.version)
        for note in plan.notes:
            log.info("%s, %s", plan.dockerfile, note)
        self.tree.mkdir(parents=True)
        await self._environment(with_pip)
        for step in plan.steps:
            match step:
                case Folder():
                    self.paths.host(step.path).mkdir(parents=True, exist_ok=True)
                    self._own(step.path)
                case Copy():
                    await asyncio.to_thread(self._copy, step)
                case Pip():
                    await self._pip(step)
        await self._compile(with_pip)
        image = PreparedImage(plan.ref, self.place, plan.workdir, plan.env, plan.command, self._outermost())
        image.save()
        log.info("prepared %s in %.1f s", plan.dockerfile, time.monotonic() - began)
        return image

    @property
    def paths(self) -> PathMap:
        """Container paths as far as the image is built."""
        return PathMap(self.tree, tuple(self.owned), self.python.parent)

    async def _environment(self, with_pip: bool) -> None:
        command = [str(self.plan.python.path), "-m", "venv", *([] if with_pip else ["--without-pip"])]
        output, code = await self._run([*command, str(self.place / "venv")], self.place, {}, "python -m venv")
        if code:
            hint = "on Debian and Ubuntu: apt install python3-venv" if b"ensurepip" in output else "is it complete?"
            raise ImageError(
                f"process: {self.plan.python.path} can't make a virtual environment ({hint}):\n{_end(output)}"
            )

    def _copy(self, step: Copy) -> None:
        folder = step.target.endswith("/")
        for source in step.sources:
            place = self.paths.host(step.target)
            is_folder = (self.plan.context.root / source).is_dir()
            inside = not is_folder and (folder or place.is_dir())
            target = place / Path(source).name if inside else place
            try:
                self.plan.context.copy(source, target)
            except (OSError, CopyFault) as exc:
                raise ImageError(f"{self.plan.dockerfile}:{step.line}: COPY {source} failed: {exc}") from exc
            if step.mode is not None:
                for path in [target, *target.rglob("*")]:
                    if not path.is_symlink():
                        path.chmod(step.mode | (0o700 if path.is_dir() else 0))
            self._own("/" + target.relative_to(self.tree).as_posix().removeprefix("."))

    def _own(self, path: str) -> None:
        """Notes that a container path came with the image; of a folder that every machine has, what is in it."""
        path = path.rstrip("/") or "/"
        if path in SYSTEM:
            for inner in sorted(self.paths.host(path).iterdir()):
                self._own(f"{path.rstrip('/')}/{inner.name}")
        elif path not in self.owned:
            self.owned.append(path)

    def _outermost(self) -> tuple[str, ...]:
        """The owned paths that no other one covers."""
        return tuple(
            path
            for path in sorted(self.owned)
            if not any(path.startswith(other + "/") for other in self.owned if other != path)
        )

    async def _pip(self, step: Pip) -> None:
        place = f"{self.plan.dockerfile}:{step.line}"
        told = f"pip {shlex.join(step.arguments)}"
        argv = [str(self.python), "-m", "pip", *(word for part in step.arguments for word in self._words(part, step))]
        env = {name: self.paths.text(value) for name, value in step.env.items() if name != "PATH"}
        workdir = self.paths.host(step.workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        output, code = await self._run(argv, workdir, env, told)
        if code:
            raise ImageError(f"{place}: {told} failed with exit code {code}:\n{_end(output)}")

    def _words(self, part: str, step: Pip) -> list[str]:
        """An argument, or the files it stands for: as in a shell, a pattern that fits no file stays as it is."""
        if any(mark in part for mark in "*?["):
            found = glob.glob(str(self.paths.host(absolute(part, step.workdir))))
            if found:
                return sorted(found)
        return [self.paths.argument(part)]

    async def _compile(self, with_pip: bool) -> None:
        """Compiles all Python files once, so that no sandbox spends its start on it."""
        compiler = [str(self.python), "-m", "compileall", "-q"]
        await self._run([*compiler, "-s", str(self.tree), "-p", "/", str(self.tree)], self.place, {}, "compiling")
        if with_pip:
            await self._run([*compiler, str(self.place / "venv" / "lib")], self.place, {}, "compiling packages")

    async def _run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], told: str) -> tuple[bytes, int]:
        """Runs a build command; stopped with everything it started when this is cancelled."""
        mark = uuid.uuid4().hex
        kept, last = Kept(1 << 20), [b""]

        def take(data: bytes) -> None:
            kept.add(data)
            last[0] = data

        whole = {**_build_environment(), **env, "AGENT_ENV_BUILD": mark, "PYTHONUNBUFFERED": "1"}
        log.info("%s", told)
        child = Child(argv, env=whole, cwd=cwd, stdout=take)
        beat = asyncio.create_task(_heartbeat(told, lambda: last[0]))
        try:
            await child.connect()
            code = await child.finish()
            return kept.value(), code
        except BaseException:
            await asyncio.shield(asyncio.to_thread(end_all, f"AGENT_ENV_BUILD={mark}", child.known))
            raise
        finally:
            beat.cancel()
            child.close()


async def _heartbeat(told: str, last: Callable[[], bytes]) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(HEARTBEAT)
        line = (last().decode(errors="replace").strip().splitlines() or [""])[-1]
        log.info("%.60s: still running after %.0f s: %.100s", told, time.monotonic() - began, line)


def _build_environment() -> dict[str, str]:
    exact = {name for name in _FOR_BUILDS if not name.endswith("*")}
    starts = tuple(name[:-1] for name in _FOR_BUILDS if name.endswith("*"))
    return {name: value for name, value in os.environ.items() if name in exact or name.startswith(starts)}


def _end(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").rstrip().splitlines()[-OUTPUT_LINES:])

"""Carrying out the steps of a plan: folders, copies, and ``pip``."""

from __future__ import annotations

import asyncio
import glob
import shlex
from collections.abc import Iterable
from pathlib import Path

from agent_env_core.errors import ImageError
from agent_env_process.commands import end_of, run
from agent_env_process.context import CopyFault
from agent_env_process.paths import SYSTEM, PathMap, absolute
from agent_env_process.plan import Copy, Folder, Pip, Plan, Step


class Replay:
    """Steps carried out in a folder that stands for ``/``.

    Args:
        plan: Whose steps.
        tree: The folder; made here.
        python: The Python whose ``pip`` is run.
    """

    def __init__(self, plan: Plan, tree: Path, python: Path) -> None:
        self._plan, self._tree, self._python = plan, tree, python
        self._owned: list[str] = []
        tree.mkdir(parents=True)

    async def take(self, steps: Iterable[Step]) -> None:
        """Carries out steps, in order.

        Raises:
            ImageError: One failed; the message names its line.
        """
        for step in steps:
            match step:
                case Folder():
                    self._paths.host(step.path).mkdir(parents=True, exist_ok=True)
                    self._own(step.path)
                case Copy():
                    await asyncio.to_thread(self._copy, step)
                case Pip():
                    await self._pip(step)

    @property
    def owned(self) -> tuple[str, ...]:
        """The container paths that the steps have made, without those that another one covers."""
        return tuple(
            path
            for path in sorted(self._owned)
            if not any(path.startswith(other + "/") for other in self._owned if other != path)
        )

    @property
    def _paths(self) -> PathMap:
        """Container paths as far as the image is built."""
        return PathMap(self._tree, tuple(self._owned), self._python.parent)

    def _copy(self, step: Copy) -> None:
        folder = step.target.endswith("/")
        for source in step.sources:
            place = self._paths.host(step.target)
            is_folder = (self._plan.context.root / source).is_dir()
            inside = not is_folder and (folder or place.is_dir())
            target = place / Path(source).name if inside else place
            try:
                self._plan.context.copy(source, target)
            except (OSError, CopyFault) as exc:
                raise ImageError(f"{self._plan.dockerfile}:{step.line}: COPY {source} failed: {exc}") from exc
            if step.mode is not None:
                for path in [target, *target.rglob("*")]:
                    if not path.is_symlink():
                        path.chmod(step.mode | (0o700 if path.is_dir() else 0))
            self._own("/" + target.relative_to(self._tree).as_posix().removeprefix("."))

    def _own(self, path: str) -> None:
        """Notes that a container path came with the image; of a folder that every machine has, what is in it."""
        path = path.rstrip("/") or "/"
        if path in SYSTEM:
            for inner in sorted(self._paths.host(path).iterdir()):
                self._own(f"{path.rstrip('/')}/{inner.name}")
        elif path not in self._owned:
            self._owned.append(path)

    async def _pip(self, step: Pip) -> None:
        place = f"{self._plan.dockerfile}:{step.line}"
        told = f"pip {shlex.join(step.arguments)}"
        argv = [str(self._python), "-m", "pip", *(word for part in step.arguments for word in self._words(part, step))]
        env = {name: self._paths.text(value) for name, value in step.env.items() if name != "PATH"}
        workdir = self._paths.host(step.workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        output, code = await run(argv, workdir, env, told)
        if code:
            raise ImageError(f"{place}: {told} failed with exit code {code}:\n{end_of(output)}")

    def _words(self, part: str, step: Pip) -> list[str]:
        """An argument, or the files it stands for: as in a shell, a pattern that fits no file stays as it is."""
        if any(mark in part for mark in "*?["):
            found = glob.glob(str(self._paths.host(absolute(part, step.workdir))))
            if found:
                return sorted(found)
        return [self._paths.argument(part)]

"""``run_container_unit_tests_verifier``: scores a sandbox by a command in it, by its exit code or a file it writes."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.contract import ExecResult
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import RunContext, Verification
from agent_env_core.steps.files import put_again, take_files, write_files
from agent_env_core.steps.grading import ENVIRONMENT, settle
from agent_env_core.steps.placed import File, PlacedSandbox
from agent_env_core.steps.shell import as_seen_inside, read_start, said, shell

ROOT = "root"
SCRIPT_SECONDS = 60.0
MAX_RESULT = 64 * 1024
"""Bytes of each of ``result_paths`` that go on record."""

# Argument: the path. A folder that may not be written in was perhaps left so by the agent: its user may mend that.
_FORGET = r"""
rm -rf -- "$1" 2>/dev/null || chmod u+rwx -- "${1%/*}" 2>/dev/null && rm -rf -- "$1" 2>/dev/null
[ ! -e "$1" ] && [ ! -L "$1" ]
"""
# Argument: the folder or file.
_REMOVE = 'rm -rf -- "$1" 2>/dev/null; :'
MAX_REWARD = 4096


class RunContainerUnitTestsVerifier(ScoringStep):
    """Runs tests in a sandbox, usually the container that an agent worked in.

    Without ``reward_path`` the exit code is the score, 1 or 0, and one that isn't 0 fails the step after it was
    recorded. With it, the file's number is the score, between 0 and 1, and the exit code doesn't matter.

    Attributes:
        sandbox_name: The sandbox.
        container_name: A container in it.
        command: A line of shell.
        setup_commands: Lines of shell that run before it, and must succeed.
        user: Commands run as the image's user; ``root`` is what the format says for that.
        timeout_sec: Seconds that each of them may take.
        env_vars: Their variables.
        result_paths: Files that go on record afterwards.
        reward_path: Where the command writes the score.
        keep_processes: Whether what the agent left running stays; for tests of a service that it started. Not in the
            published format, and with it the agent can change what is graded while it is.
        fresh: Whether the tests run in a new sandbox of the same image, into which ``fresh_paths`` are copied from the
            agent's. Not in the published format. Whatever the agent did to programs and libraries is left behind.
        fresh_paths: The files and folders of the agent that are graded; by default the folder that it worked in.
    """

    references: ClassVar[tuple[Reference, ...]] = ()

    sandbox_name: str = Field(min_length=1)
    container_name: str | None = Field(default=None, min_length=1)
    command: str = Field(min_length=1)
    setup_commands: list[str] = Field(default_factory=list)
    user: str = ROOT
    timeout_sec: float = Field(default=300, gt=0, allow_inf_nan=False)
    env_vars: dict[str, str] = Field(default_factory=dict)
    result_paths: list[str] = Field(default_factory=list)
    reward_path: str | None = Field(default=None, pattern="^/")
    verifier_id: str = ""
    keep_processes: bool = False
    fresh: bool = False
    fresh_paths: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _named_after_itself(cls, value: Any) -> Any:
        return (
            {**value, "verifier_id": value.get("verifier_id") or value.get("id")} if isinstance(value, dict) else value
        )

    @model_validator(mode="after")
    def _fits_together(self) -> RunContainerUnitTestsVerifier:
        if self.fresh and self.keep_processes:
            raise ValueError("set one of fresh and keep_processes: a new sandbox has none of the agent's processes")
        if self.fresh_paths and not self.fresh:
            raise ValueError("fresh_paths needs fresh")
        if any(not path.startswith("/") for path in (*self.fresh_paths, *self.result_paths)):
            raise ValueError("fresh_paths and result_paths must be absolute paths")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds users that no provider can be asked for."""
        lines = super().refusals(played)
        return lines + ([] if self.user == ROOT else [f"user={self.user!r}: commands run as the image's own user"])

    async def run(self, run: RunContext) -> None:
        """Runs the tests and records what they say."""
        placed = await run.places.find(self.sandbox_name, self.container_name)
        if not self.fresh:
            try:
                if not self.keep_processes:
                    await settle(run, placed, self.id)
            except EpisodeError as exc:  # only the agent can have brought its sandbox to that
                self._record(run, 0.0, exc.reason, "")
                return
            await self._grade(run, placed)
            return
        folder = await _workdir(placed)
        try:
            work = [await _take(placed, path, self.timeout_sec) for path in self.fresh_paths or [folder]]
        except EpisodeError as exc:  # the agent made something of its own files that can't be copied
            self._record(run, 0.0, exc.reason, "")
            return
        fresh = await run.places.make(f"{self.id}, fresh", "container", placed.order, placed.workdir)
        try:
            await _make_alike(fresh, placed, work)
            await fresh.sandbox.exec(["mkdir", "-p", folder], cwd="/", timeout=SCRIPT_SECONDS)
            await self._grade(run, fresh)
        finally:
            await run.places.end(fresh.name)

    async def _grade(self, run: RunContext, placed: PlacedSandbox) -> None:
        for line in self.setup_commands:
            done = await self._shell(placed, line)
            if done.timed_out or done.exit_code != 0:
                raise EpisodeError("verify", f"setup command {line!r} of step {self.id!r} failed: {said(done)}")
        if self.reward_path is not None:
            await as_seen_inside(placed, self.reward_path)
            forgotten = await _script(placed, _FORGET, self.reward_path)
            if forgotten.exit_code != 0:
                self._record(run, 0.0, f"{self.reward_path} was there before and can't be removed", "")
                return
        done = await self._shell(placed, self.command)
        await self._keep_results(run, placed)
        if done.timed_out:
            self._record(run, 0.0, f"the tests took longer than {self.timeout_sec:g}s", said(done))
            raise EpisodeError("verify", f"the command of step {self.id!r} took longer than {self.timeout_sec:g}s")
        if self.reward_path is not None:
            score, why = await _reward(placed, self.reward_path)
            self._record(run, score, why, said(done))
            return
        self._record(run, float(done.exit_code == 0), f"exit code {done.exit_code}", said(done))
        if done.exit_code != 0:
            raise EpisodeError("verify", f"the command of step {self.id!r} failed: {said(done)}")

    async def _shell(self, placed: PlacedSandbox, line: str) -> ExecResult:
        env = {**ENVIRONMENT, **self.env_vars}
        return await shell(placed, line, env=env, timeout=self.timeout_sec)

    def _record(self, run: RunContext, score: float, why: str, output: str) -> None:
        row = {"id": "exit_code" if self.reward_path is None else "reward", "score": score, "result": score >= 1}
        rows = [{**row, "message": why, "output": output}]
        run.verifications[self.verifier_id] = Verification(score, rows)

    async def _keep_results(self, run: RunContext, placed: PlacedSandbox) -> None:
        for path in self.result_paths:
            try:
                text = (await read_start(placed, path, MAX_RESULT)).decode(errors="replace")
            except (FileNotFoundError, EpisodeError) as exc:
                text = f"[{exc}]"
            run.note("test_results", {"step_id": self.id, "path": path, "text": text})


async def _script(placed: PlacedSandbox, script: str, path: str) -> ExecResult:
    return await placed.sandbox.exec(["sh", "-c", script, "sh", path], timeout=SCRIPT_SECONDS)


@dataclass(frozen=True)
class _Work:
    """What an agent made of a path: its files, relative to a folder that is the path itself or the one above it."""

    path: str
    folder: str
    files: tuple[File, ...]


async def _take(placed: PlacedSandbox, path: str, timeout: float) -> _Work:
    path = posixpath.normpath(path)
    folder, name = posixpath.split(path)
    files = await take_files(placed, path, links=True, timeout=timeout)
    if files or folder == "/":
        return _Work(path, path, files)
    return _Work(path, folder, await take_files(placed, folder, [name], links=True, timeout=timeout))


async def _make_alike(fresh: PlacedSandbox, graded: PlacedSandbox, work: Sequence[_Work]) -> None:
    """Puts into a new sandbox what was loaded and what the agent made of it, in the order in which it came about."""
    await put_again(fresh, filterfalse(graded.late, graded.loads))
    for part in work:
        await _script(fresh, _REMOVE, part.path)
        await write_files(fresh, part.folder, part.files)
    await put_again(fresh, filter(graded.late, graded.loads))


async def _workdir(placed: PlacedSandbox) -> str:
    """Where an agent's commands run, by the name that the image has for it."""
    from agent_env_core.bundle.dockerfile import read_dockerfile

    image = placed.order.image
    if placed.workdir is None and image.context is not None:
        return read_dockerfile(image.context / image.dockerfile).workdir or "/"
    if placed.workdir is None:
        done = await placed.sandbox.exec(["pwd"], timeout=SCRIPT_SECONDS)
        return done.stdout.decode(errors="surrogateescape").strip()
    return placed.workdir


async def _reward(placed: PlacedSandbox, path: str) -> tuple[float, str]:
    """The number in a file, between 0 and 1, and what to say of it."""
    try:
        text = (await read_start(placed, path, MAX_REWARD)).decode(errors="replace").strip()
    except FileNotFoundError:
        return 0.0, f"no file {path} was written"
    except EpisodeError as exc:
        return 0.0, exc.reason
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        return 0.0, f"{path} holds {text[:80]!r}, which is no number"
    return min(1.0, max(0.0, number)), f"{path} holds {text[:80]}"


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``run_container_unit_tests_verifier``."""
    register("run_container_unit_tests_verifier", RunContainerUnitTestsVerifier)

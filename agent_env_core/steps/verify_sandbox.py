"""``verify_sandbox``: scores what is in a sandbox by files that exist and commands that succeed."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import SandboxError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import RunContext, Verification
from agent_env_core.steps.grading import ENVIRONMENT, judged_late, settle
from agent_env_core.steps.placed import DEFAULT_AGENT, PlacedSandbox
from agent_env_core.steps.shell import as_seen_inside, read_start, said, shell
from agent_env_core.verifiers import response_checks
from agent_env_core.verifiers.pool import VerifierJob

MAX_SEARCHED = 8 * 1024 * 1024
"""Bytes of a file that ``probe_file_contains`` looks through."""
Finding = tuple[bool, str]
"""Whether a criterion holds, and why."""


class VerifySandbox(ScoringStep):
    """Looks at a sandbox, criterion by criterion. A criterion that can't be looked at fails; the step doesn't.

    Attributes:
        criteria: What must hold: ``probe_file_exists`` and ``probe_dir_exists`` with ``paths``, ``probe_file_contains``
            with ``paths`` and ``expected`` (a regular expression), ``bash_cmd_succeeds`` with ``bash_cmd``. Others are
            skipped, and don't count.
        sandbox_name: The sandbox; None is an agent's.
        container_name: A container in it.
        agent_name: The agent whose sandbox it is.
        base_dir: Where relative paths begin, and commands run.
        shell_timeout_seconds: Seconds that each look may take.
        keep_processes: Whether what the agent left running stays where its work is judged by files that were loaded
            after its turn. Not in the published format.
    """

    references: ClassVar[tuple[Reference, ...]] = ()

    criteria: list[dict[str, Any]] = Field(min_length=1)
    sandbox_name: str | None = Field(default=None, min_length=1)
    container_name: str | None = None
    agent_name: str | None = Field(default=None, min_length=1)
    base_dir: str = Field(default="/app", pattern="^/")
    shell_timeout_seconds: float = Field(default=120, gt=0, allow_inf_nan=False)
    keep_processes: bool = False

    @model_validator(mode="after")
    def _one_place(self) -> VerifySandbox:
        if self.sandbox_name is not None and self.agent_name is not None:
            raise ValueError("set one of sandbox_name and agent_name, not both")
        if self.container_name and self.sandbox_name is None:
            raise ValueError(f"container_name={self.container_name!r} needs sandbox_name")
        return self

    async def run(self, run: RunContext) -> None:
        """Looks, and scores what it found."""
        placed = await self._place(run)
        if judged_late(placed) and not self.keep_processes:
            await settle(run, placed, self.id)
        await as_seen_inside(placed, self.base_dir)
        rows = [await self._row(run, placed, index, criterion) for index, criterion in enumerate(self.criteria)]
        counted = [row for row in rows if not row["skipped"]]
        run.verifications[self.verifier_id] = Verification(self.score(counted), rows)

    async def _place(self, run: RunContext) -> PlacedSandbox:
        if self.sandbox_name is not None:
            return await run.places.find(self.sandbox_name, self.container_name)
        return run.agent_sandbox(self.agent_name or DEFAULT_AGENT)

    async def _row(
        self, run: RunContext, placed: PlacedSandbox, index: int, criterion: dict[str, Any]
    ) -> dict[str, Any]:
        look = _LOOKS.get(str(criterion.get("type")))
        row = {**criterion, "criterion_index": index, "skipped": look is None}
        if look is None:
            return {
                **row,
                "score": 0.0,
                "result": False,
                "justification": "this kind of criterion isn't looked at here",
            }
        try:
            holds, why = await look(self, run, placed, criterion)
        except SandboxError:
            raise  # nobody knows what the agent did: that is no finding
        except Exception as exc:  # a criterion that makes no sense, or a file that can't be read as one
            holds, why = False, f"it can't be looked at: {type(exc).__name__}: {exc}"
        return {**row, "score": float(holds), "result": holds, "justification": why}

    # -- the kinds of criteria

    async def _files(self, run: RunContext, placed: PlacedSandbox, criterion: dict[str, Any]) -> Finding:
        return await self._exist(placed, criterion, "-f", "file")

    async def _folders(self, run: RunContext, placed: PlacedSandbox, criterion: dict[str, Any]) -> Finding:
        return await self._exist(placed, criterion, "-d", "folder")

    async def _exist(self, placed: PlacedSandbox, criterion: dict[str, Any], test: str, kind: str) -> Finding:
        paths = [self._path(path) for path in _paths(criterion)]
        script = f'for path do [ {test} "$path" ] || echo "$path"; done'
        done = await placed.sandbox.exec(["sh", "-c", script, "sh", *paths], timeout=self.shell_timeout_seconds)
        if done.timed_out or done.exit_code != 0:
            return False, said(done)
        missing = done.stdout.decode(errors="replace").split("\n")[:-1]
        return not missing, f"no {kind}: {', '.join(missing)}" if missing else f"every {kind} is there"

    async def _contains(self, run: RunContext, placed: PlacedSandbox, criterion: dict[str, Any]) -> Finding:
        expected = criterion["expected"] if "expected" in criterion else criterion["value"]
        path = self._path(_paths(criterion)[0])
        text = (await read_start(placed, path, MAX_SEARCHED)).decode(errors="replace")
        asked = {"type": "response_regex_present", "pattern": expected, "flags": []}
        # apart from the server, and within a deadline: a pattern can take for ever on a text that was made for it
        job = VerifierJob(Path(response_checks.__file__), "", "", arguments={"response": text, "criteria": [asked]})
        (row,) = await run.verifiers.verify(job)
        found = row["result"] is True
        return found, f"{path} {'has' if found else 'has nothing like'} {expected!r}"

    async def _succeeds(self, run: RunContext, placed: PlacedSandbox, criterion: dict[str, Any]) -> Finding:
        command = criterion["bash_cmd"]
        done = await shell(placed, command, env=ENVIRONMENT, cwd=self.base_dir, timeout=self.shell_timeout_seconds)
        return done.exit_code == 0, said(done)

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.base_dir, path))


_LOOKS: dict[str, Callable[[VerifySandbox, RunContext, PlacedSandbox, dict[str, Any]], Awaitable[Finding]]] = {
    "probe_file_exists": VerifySandbox._files,
    "probe_dir_exists": VerifySandbox._folders,
    "probe_file_contains": VerifySandbox._contains,
    "bash_cmd_succeeds": VerifySandbox._succeeds,
}


def _paths(criterion: dict[str, Any]) -> list[str]:
    paths = criterion.get("paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise ValueError(f"paths={paths!r} must be a list of paths")
    return paths


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``verify_sandbox``."""
    register("verify_sandbox", VerifySandbox)

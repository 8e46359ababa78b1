"""``run_code``: runs a Python script of the bundle in a sandbox, and keeps what it returns."""

from __future__ import annotations

import json
import posixpath
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.files import read_folder
from agent_env_core.steps.placed import DEFAULT_AGENT, File
from agent_env_core.steps.shell import said

if TYPE_CHECKING:
    from agent_env_core.bundle import Artifact, Bundle
    from agent_env_core.sandbox.contract import Sandbox

RUNNER = Path(__file__).parent / "code_runner.py"
STAGE = "/tmp/agent-env-code"  # noqa: S108 - a folder of the sandbox, which is nobody else's
MAX_STAGED = 5 * 1024 * 1024
MAX_RESULT = 4 * 1024 * 1024
SUFFIX = ".py"
PYTHONS = 'for python in python3 python; do command -v $python >/dev/null && exec $python "$@"; done; exit 127'


class RunCode(TaskStep):
    """Calls a function of a script with one object: ``args``, ``results`` of the steps like it before, and ``env``.

    Its answer, anything that goes into JSON, becomes :attr:`RunContext.script_results`. It records no score.

    Attributes:
        script_artifact_id: The script, or a tree with it; of a tree all Python files go along.
        script_file: The script in a tree; by default its only Python file, else the only one called ``run.py``.
        entrypoint: The function.
        args: Handed to it.
        result_id: The name its answer is known by; the step's id by default.
        timeout_seconds: Seconds it may take.
        env_id: The env in whose sandbox it runs, and which it is told the address of.
        sandbox_name: The sandbox it runs in.
        container_name: A container in it.
        agent_name: The agent in whose sandbox it runs.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("script_artifact_id", "artifact", pin="script_artifact_version"),
        Reference("env_id", "env"),
    )

    script_artifact_id: str = Field(min_length=1)
    script_artifact_version: int | None = None
    script_file: str | None = None
    entrypoint: str = Field(default="run", pattern=r"^[A-Za-z_]\w*$")
    args: dict[str, Any] = Field(default_factory=dict)
    result_id: str | None = Field(default=None, min_length=1)
    timeout_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    env_id: str | None = Field(default=None, min_length=1)
    sandbox_name: str | None = Field(default=None, min_length=1)
    container_name: str | None = None
    agent_name: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_place(self) -> RunCode:
        given = [name for name in ("env_id", "sandbox_name", "agent_name") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(f"set one of {' and '.join(given)}")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds versions, which need a store."""
        return super().refusals(played) + self.unsupported(script_artifact_version=None)

    def misfits(self, bundle: Bundle) -> list[str]:
        """A script that can't be found in its artifact."""
        artifact = bundle.artifacts.get(self.script_artifact_id)
        try:
            if artifact is not None:
                self._script(artifact)
        except EpisodeError as exc:
            return [exc.reason]
        return []

    def _script(self, artifact: Artifact) -> str:
        scripts = [name for name in artifact.files if name.endswith(SUFFIX)]
        if self.script_file is not None:
            chosen = [name for name in scripts if name == posixpath.normpath(self.script_file)]
        else:
            chosen = scripts if len(scripts) == 1 else [n for n in scripts if posixpath.basename(n) == "run.py"]
        if len(chosen) != 1:
            has = ", ".join(scripts) or "none"
            fix = "set script_file to one of them" if scripts else f"a script ends in {SUFFIX}"
            raise EpisodeError(
                "setup", f"the artifact {artifact.name!r} has no one script to run (it has: {has}): {fix}"
            )
        return chosen[0]

    async def run(self, run: RunContext) -> None:
        """Runs it; what it raises, or a time that is over, fails the step."""
        artifact = run.bundle.artifacts[self.script_artifact_id]
        script = self._script(artifact)
        files = read_folder(artifact.path, [name for name in artifact.files if name.endswith(SUFFIX)])
        if sum(len(file.data) for file in files) > MAX_STAGED:
            raise EpisodeError("setup", f"the scripts of {artifact.name!r} are more than {MAX_STAGED >> 20} MiB")
        argument: dict[str, Any] = {"args": self.args, "results": run.script_results}
        asked = {"entrypoint": self.entrypoint, "argument": argument, "port_variable": "MCP_PORT", "mcp_path": ""}
        sandbox = await self._place(run, asked)
        stage = f"{STAGE}-{secrets.token_hex(8)}"
        await _stage(sandbox, stage, (*files, File("agent_env_runner.py", RUNNER.read_bytes())))
        seen = await sandbox.exec(["printf", "%s", f"{stage}/{script}"], timeout=60)  # the path as its commands see it
        asked["script"] = seen.stdout.decode(errors="surrogateescape")
        self._keep(run, await self._call(sandbox, stage, asked))

    async def _call(self, sandbox: Sandbox, stage: str, asked: dict[str, Any]) -> bytes:
        try:
            sent = json.dumps(asked, allow_nan=False).encode()
        except ValueError as exc:
            raise EpisodeError("setup", f"args of step {self.id!r} can't be sent as JSON: {exc}") from exc
        command = ["sh", "-c", PYTHONS, "sh", f"{stage}/agent_env_runner.py"]
        done = await sandbox.exec(command, stdin=sent, timeout=self.timeout_seconds)
        if done.timed_out:
            raise EpisodeError("setup", f"the code of step {self.id!r} took longer than {self.timeout_seconds:g}s")
        if done.exit_code == 127 and not done.stdout:
            raise EpisodeError("setup", f"the code of step {self.id!r} needs Python in its sandbox: {said(done)}")
        if done.exit_code != 0:
            raise EpisodeError("setup", f"the code of step {self.id!r} failed: {said(done)}")
        return done.stdout

    def _keep(self, run: RunContext, answer: bytes) -> None:
        if len(answer) > MAX_RESULT:
            raise EpisodeError("setup", f"step {self.id!r} returned more than {MAX_RESULT >> 20} MiB")
        try:
            run.script_results[self.result_id or self.id] = json.loads(answer)
        except ValueError as exc:
            raise EpisodeError("setup", f"step {self.id!r} returned what is no JSON: {exc}") from exc

    async def _place(self, run: RunContext, asked: dict[str, Any]) -> Sandbox:
        if self.sandbox_name is not None:
            return (await run.places.find(self.sandbox_name, self.container_name)).sandbox
        if self.env_id is None:
            return run.agent_sandbox(self.agent_name or DEFAULT_AGENT).sandbox
        server = run.env(self.env_id).servers[0]
        asked["argument"]["env"] = {"id": self.env_id}
        asked["mcp_path"] = server.card.mcp_path
        return server.sandbox

    async def undo(self, run: RunContext) -> None:
        """Forgets what it returned."""
        run.script_results.pop(self.result_id or self.id, None)


async def _stage(sandbox: Sandbox, folder: str, files: Collection[File]) -> None:
    for file in files:
        await sandbox.write(f"{folder}/{file.path}", file.data)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``run_code``."""
    register("run_code", RunCode)

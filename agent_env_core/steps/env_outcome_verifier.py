"""``env_outcome_verifier``: scores a run by code of the bundle that looks at the env."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import RunContext, Verification
from agent_env_core.steps.run_record import run_record
from agent_env_core.verifiers.pool import VerifierJob

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle


class EnvOutcomeVerifier(ScoringStep):
    """Runs a verifier against a deployed env.

    Attributes:
        env_id: The env.
        file_artifact_id: The verifier: a Python file that defines ``async def verify(mcp_url)``.
        prompt_id: Which prompt the verifier's ``run`` tells of; None is the last one answered.
    """

    references: ClassVar[tuple[Reference, ...]] = (
        Reference("env_id", "env"),
        Reference("file_artifact_id", "artifact", pin="file_artifact_version", artifact_type="file"),
    )

    env_id: str = Field(min_length=1)
    file_artifact_id: str = Field(min_length=1)
    file_artifact_version: int | None = None
    prompt_id: str | None = None

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds versions, which need a store."""
        return super().refusals(played) + self.unsupported(file_artifact_version=None)

    def misfits(self, bundle: Bundle) -> list[str]:
        """A verifier that Python can't read: it would be noticed only when the first episode is over."""
        artifact = bundle.artifacts.get(self.file_artifact_id)
        if artifact is None or artifact.type != "file":
            return []
        try:
            fault = _fault(artifact.file, artifact.file.stat().st_mtime_ns)
        except OSError as exc:
            fault = f"can't be read: {exc.strerror or exc}"
        return [f"file_artifact_id: {artifact.name}/{artifact.file.name} {fault}"] if fault else []

    async def run(self, run: RunContext) -> None:
        """Runs it, apart from the server. What goes wrong leaves the run without a score, never with a low one."""
        env = run.env(self.env_id)
        file = run.bundle.artifacts[self.file_artifact_id].file
        last = run.responses[-1] if run.responses else None
        told = last if self.prompt_id is None else run.response(self.prompt_id)
        job = VerifierJob(file, env.mcp_url, env.base_url, env.headers, run_record(run, told))
        try:
            rows = await run.verifiers.verify(job)
        except EpisodeError as exc:
            if exc.retryable:
                raise await env.failure(exc, "verify", job.name) from exc
            raise
        run.verifications[self.verifier_id] = Verification(self.score(rows), rows)


@lru_cache(maxsize=256)  # hundreds of tasks share a verifier
def _fault(file: Path, changed: int) -> str:
    """Why a file defines no verifier, as far as that shows without running it; ``changed`` is when it was written."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(file.read_bytes()).body
    except SyntaxError as exc:
        return f"is not Python: {exc.msg} (line {exc.lineno})"
    except ValueError as exc:  # a zero byte, in some versions
        return f"is not Python: {exc}"
    if any(isinstance(node, ast.FunctionDef) and node.name == "verify" for node in body):
        return "must define an async function: async def verify(mcp_url)"
    return ""


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``env_outcome_verifier``."""
    register("env_outcome_verifier", EnvOutcomeVerifier)

"""``env_outcome_verifier``: scores a run by code of the bundle that looks at the env."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, ClassVar

from pydantic import Field

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import PromptResponse, RunContext, Verification
from agent_env_core.verifiers.pool import VerifierJob
from agent_env_core.verifiers.record import write_turn


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

    async def run(self, run: RunContext) -> None:
        """Runs it, apart from the server. What goes wrong leaves the run without a score, never with a low one."""
        env = run.env(self.env_id)
        file = run.bundle.artifacts[self.file_artifact_id].file
        job = VerifierJob(file, env.mcp_url, env.base_url, env.headers, self._turns(run))
        try:
            rows = await run.verifiers.verify(job)
        except EpisodeError as exc:
            if exc.retryable:
                raise await env.failure(exc, "verify", file.name) from exc
            raise
        run.verifications[self.verifier_id] = Verification(self.score(rows), rows)

    def _turns(self, run: RunContext) -> list[dict[str, Any]]:
        chosen = [r for r in run.responses if self.prompt_id in (None, r.prompt_id)]
        if not chosen:
            if self.prompt_id is not None:
                raise EpisodeError("verify", f"prompt_id={self.prompt_id!r}: no prompt of that id was sent")
            return []
        return [_turn(chosen[-1])]


def _turn(response: PromptResponse) -> dict[str, Any]:
    return write_turn(
        prompt=response.prompt,
        sent_at=response.sent_at,
        reply=response.response,
        replied_at=response.replied_at,
        agent=response.agent_name,
    )


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``env_outcome_verifier``."""
    register("env_outcome_verifier", EnvOutcomeVerifier)

"""``aggregate_verifiers``: one score from the rows of several verifiers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import RunContext, Verification


class AggregateVerifiers(ScoringStep):
    """Scores the rows of other verifiers together. It records a score of its own, beside theirs.

    Attributes:
        verifier_ids: The ``verifier_id`` of each; they must have scored before.
        score_aggregator: How all their rows become the score; rows that were skipped don't count.
    """

    verifier_ids: list[Annotated[str, StringConstraints(min_length=1)]] = Field(min_length=1)
    score_aggregator: Literal["all_pass", "any_pass", "weighted_average"] = "weighted_average"

    async def run(self, run: RunContext) -> None:
        """Adds up."""
        for name in self.verifier_ids:
            if name not in run.verifications:
                known = ", ".join(map(repr, run.verifications)) or "none"
                reason = f"verifier_ids names {name!r}, which has not scored (scored: {known})"
                raise EpisodeError("verify", f"{reason}: set verifier_id on that step, and let this one depend on it")
            if "source_verifier_ids" in run.verifications[name].details:
                reason = f"verifier_ids names {name!r}, which is an aggregate itself and has no rows"
                raise EpisodeError("verify", f"{reason}: name what it aggregates")
        rows = [row for name in self.verifier_ids for row in run.verifications[name].results]
        score = self.score([row for row in rows if not row.get("skipped")])
        details = {"source_verifier_ids": list(self.verifier_ids)}
        run.verifications[self.verifier_id] = Verification(score, [], details)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``aggregate_verifiers``."""
    register("aggregate_verifiers", AggregateVerifiers)

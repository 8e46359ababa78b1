"""``agent_prompt_response_verifier``: scores what an agent replied, by its text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import RunContext, Verification
from agent_env_core.verifiers import response_checks
from agent_env_core.verifiers.pool import VerifierJob

Text = Annotated[str, StringConstraints(min_length=1)]


class _Criterion(BaseModel):
    """One thing to look for. Fields that aren't read, such as a weight, go into its row as they are."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class Contains(_Criterion):
    """All of some texts, in any order; case counts."""

    type: Literal["response_contains"]
    needles: list[Text] = Field(min_length=1)


class Matches(_Criterion):
    """A regular expression, anywhere in the reply."""

    type: Literal["response_regex_present"]
    pattern: Text
    flags: list[str] | None = None

    @model_validator(mode="after")
    def _compiles(self) -> Matches:
        try:
            re.compile(self.pattern, response_checks.flags_of(self.flags))
        except re.error as exc:
            raise ValueError(f"the pattern {self.pattern!r} is none: {exc}") from exc
        return self


class AgentPromptResponseVerifier(ScoringStep):
    """Looks for texts and patterns in the reply to a prompt: the last one, where the prompt had several.

    Attributes:
        prompt_id: The prompt.
        criteria: What to look for: objects of ``type`` ``response_contains`` with ``needles``, which must all be there,
            or ``response_regex_present`` with a ``pattern`` and ``flags`` by their names in Python's ``re``; without
            ``flags`` a dot matches line ends. Each may have a ``weight``.
    """

    prompt_id: str = Field(min_length=1)
    criteria: list[Annotated[Contains | Matches, Field(discriminator="type")]] = Field(min_length=1)

    async def run(self, run: RunContext) -> None:
        """Looks. A prompt that was never answered leaves the run without a score."""
        reply = run.answered(self.prompt_id).response
        arguments: dict[str, Any] = {
            "response": reply,
            "criteria": [criterion.model_dump(exclude_unset=True) for criterion in self.criteria],
        }
        rows = await run.verifiers.verify(VerifierJob(Path(response_checks.__file__), "", "", arguments=arguments))
        run.verifications[self.verifier_id] = Verification(self.score(rows), rows)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``agent_prompt_response_verifier``."""
    register("agent_prompt_response_verifier", AgentPromptResponseVerifier)

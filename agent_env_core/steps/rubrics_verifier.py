"""``rubrics_verifier``: scores a run by criteria in words, which a model judges."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.hookspecs import hookimpl
from agent_env_core.models import ModelSettings
from agent_env_core.models.settings import JUDGE_VARIABLE
from agent_env_core.steps.base import ScoringStep, TaskStep
from agent_env_core.steps.context import Exchange, PromptResponse, RunContext, ToolUse, Verification
from agent_env_core.steps.run_record import run_record
from agent_env_core.verifiers.aggregate import aggregate
from agent_env_core.verifiers.judge.case import Case, render_fact
from agent_env_core.verifiers.judge.criteria import criteria_faults
from agent_env_core.verifiers.judge.formats import FORMS
from agent_env_core.verifiers.judge.judge import Judge
from agent_env_core.verifiers.record import Run, read_run

log = logging.getLogger(__name__)

Format = Literal[
    "rubric_binary", "rubric_partial", "trajectory_mistakes", "rubric_evidence", "rubric_evidence_with_mistakes"
]
DEFAULT_MODEL = "claude-sonnet-4-6"
"""The judge that the format names where the task names none."""
MISTAKES_SUFFIX = "-trajectory-mistakes"
AT_ONCE = 4
PATH = re.compile(r"[\w-]+(\.[\w-]+)*")
MESSAGE_MOST = 4000
FIRINGS_MOST = 200


class TrajectoryFilter(BaseModel):
    """What of the record the judge is shown."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    include_tool_calls: bool = True
    include_tool_call_results: bool = True
    include_response: bool = True
    compaction_type: Literal["default", "screenshot"] = "default"


class RubricsVerifier(ScoringStep):
    """Has a model judge the answer to a prompt, and what was done for it, by criteria in words.

    The model is asked directly. Where ``use_agent_judge`` is left out, the format has an agent judge, in a sandbox of
    its own, which reads the same record; here the model judges in its place.

    Attributes:
        criteria: Objects with an ``id``, a text as ``criterion``, and a ``weight``; below 0 for what should not be.
            ``rubric_partial`` also knows ``outcomes`` and ``pass_threshold``.
        prompt_id: The prompt.
        default_model: The judge, unless the host names one.
        default_model_api_base: Where it is, unless that is the host's own endpoint.
        output_format: ``rubric_binary`` (met or not), ``rubric_partial`` (how far), ``trajectory_mistakes`` (what went
            wrong), ``rubric_evidence`` (met or not, by evidence), or ``rubric_evidence_with_mistakes``, which records a
            second score under the ``verifier_id`` with ``-trajectory-mistakes`` behind it.
        use_trajectory: Whether the judge sees the tool calls and earlier replies, or the last reply alone.
        trajectory_filter: What of them: ``include_tool_calls``, ``include_tool_call_results``, ``include_response``.
        grading_policy_prompt: How to read the criteria.
        context_facts_for_judge: Labels, and where the values are: ``verifications.cart.score``, ``script_results.x``.
        run_context_for_judge: More of the run: ``conversation``, ``trigger_log``.
        grade_up_to_turn: Judges the conversation as it stood after that turn.
        judge_timeout_seconds: Seconds for the verdict, all tries together.
        judge_batch_size: How many criteria go into one question; for the first two formats.
        judge_batch_concurrency: How many questions are put at once.
        use_agent_judge: True together with ``agent_name`` or ``judge_a2a_agent_id`` asks for a certain agent, which
            can't be had.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("judge_a2a_agent_id", "agent"),)

    criteria: list[dict[str, Any]]
    prompt_id: str = Field(min_length=1)
    default_model: str | None = None
    default_model_api_base: str | None = None
    output_format: Format = "rubric_binary"
    use_agent_judge: bool = True
    agent_name: str | None = None
    judge_a2a_agent_id: str | None = None
    use_trajectory: bool = True
    trajectory_filter: TrajectoryFilter | None = None
    grading_policy_prompt: str | None = None
    context_facts_for_judge: dict[str, str] | None = None
    run_context_for_judge: list[Literal["conversation", "trigger_log"]] | None = Field(default=None, min_length=1)
    grade_up_to_turn: int | None = Field(default=None, ge=1)
    judge_timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    judge_batch_size: int | None = Field(default=None, ge=1)
    judge_batch_concurrency: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _whole(self) -> RubricsVerifier:
        if not self.criteria and self.output_format != "trajectory_mistakes":
            raise ValueError("criteria is empty")
        if fault := next(criteria_faults(self.criteria), ""):
            raise ValueError(fault)
        if self.judge_batch_size is not None and not FORMS[self.output_format].in_batches:
            raise ValueError(f"judge_batch_size: a verdict of {self.output_format} can't be given in batches")
        for label, path in (self.context_facts_for_judge or {}).items():
            if not label or not PATH.fullmatch(path):
                raise ValueError(f"context_facts_for_judge: {path!r} is no path, such as 'verifications.cart.score'")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds certain judges, and pictures."""
        lines = super().refusals(played)
        if self.use_agent_judge:
            fix = "set use_agent_judge to false, and a model judges"
            lines += [
                f"{name}={getattr(self, name)!r}: an agent can't be the judge; {fix}"
                for name in ("agent_name", "judge_a2a_agent_id")
                if getattr(self, name) is not None
            ]
        if self.trajectory_filter is not None and self.trajectory_filter.compaction_type == "screenshot":
            lines.append("trajectory_filter.compaction_type='screenshot': the judge can't be shown pictures yet")
        return lines

    def lacks(self, models: ModelSettings) -> list[str]:
        """Names the judge, where there is none."""
        lack = models.lacks(self._model(models), JUDGE_VARIABLE, self.default_model_api_base)
        return [f"it needs a model that judges: {lack}"] if lack else []

    def _model(self, models: ModelSettings) -> str:
        return models.judge_model or self.default_model or DEFAULT_MODEL

    async def run(self, run: RunContext) -> None:
        """Judges. A judge that can't be had or understood leaves the run without a score."""
        response = run.answered(self.prompt_id)
        form = FORMS[self.output_format]
        name = self._model(run.models)
        if "use_agent_judge" in self.model_fields_set and self.use_agent_judge:
            log.info("step %r asks for an agent as the judge; the model %s judges in its place", self.id, name)
        async with run.models.open(name, base_url=self.default_model_api_base) as model:
            timeout = self.judge_timeout_seconds or run.verifiers.timeout
            at_once = self.judge_batch_concurrency or AT_ONCE
            judge = Judge(model, form, timeout, self.judge_batch_size, at_once)
            verdict = await judge.grade(self._case(run, response), self.criteria)
        told = {**verdict.details, "judge_model": name, "judge_output_format": form.name}
        if self.grade_up_to_turn is not None:
            told["graded_up_to_turn"] = self.grade_up_to_turn
        score = self.score(verdict.rows)
        if form.name == "rubric_evidence_with_mistakes":
            mistakes = aggregate("weighted_average", verdict.mistakes)
            of = {"format": "trajectory_mistakes", "source_verifier_id": self.verifier_id, "judge_model": name}
            run.verifications[self.verifier_id + MISTAKES_SUFFIX] = Verification(mistakes, verdict.mistakes, of)
        run.verifications[self.verifier_id] = Verification(score, verdict.rows, {"format": form.stored, **told})

    async def undo(self, run: RunContext) -> None:
        """Forgets both scores."""
        await super().undo(run)
        run.verifications.pop(self.verifier_id + MISTAKES_SUFFIX, None)

    # -- the case

    def _case(self, run: RunContext, response: PromptResponse) -> Case:
        exchanges = response.exchanges
        if self.grade_up_to_turn is not None:
            exchanges = exchanges[: self.grade_up_to_turn]
        facts = {} if self.context_facts_for_judge is None else self.context_facts_for_judge
        found = _known(run)
        return Case(
            asked=response.prompt,
            replied=(exchanges[-1].response if exchanges else response.response) or "",
            record=list(self._record(exchanges)) if self.use_trajectory else [],
            context=list(self._context(run, response)),
            facts=[(label, _look_up(found, path)) for label, path in facts.items()],
            policy=self.grading_policy_prompt or "",
        )

    def _record(self, exchanges: tuple[Exchange, ...]) -> Iterator[tuple[str, str]]:
        """What was said and done, each with the label that a judge may cite it by."""
        shown = self.trajectory_filter or TrajectoryFilter()
        entries: list[str] = []
        for number, exchange in enumerate(exchanges):
            if number:
                entries.append(f"user: {exchange.prompt}")
            if shown.include_tool_calls:
                entries += [_used(use, shown.include_tool_call_results) for use in exchange.uses]
            if shown.include_response and exchange.response is not None:
                entries.append(f"agent: {exchange.response}")
        return ((f"{number}", entry) for number, entry in enumerate(entries, start=1))

    def _context(self, run: RunContext, response: PromptResponse) -> Iterator[tuple[str, str]]:
        if self.run_context_for_judge is None:
            return
        record = read_run(json.loads(json.dumps(run_record(run, response))))
        if self.grade_up_to_turn is not None:
            record = record.as_of(self.grade_up_to_turn)
        if "conversation" in self.run_context_for_judge:
            yield "Conversation", _conversation(record)
        if "trigger_log" in self.run_context_for_judge:
            yield "Triggers that fired", _firings(record)


def _used(use: ToolUse, with_result: bool) -> str:
    call = f"tool {use.tool} {json.dumps(dict(use.arguments), ensure_ascii=False)}"
    if not with_result:
        return call
    return f"{call}\n  {f'failed ({use.failure})' if use.failure else 'answered'}: {use.result}"


def _conversation(record: Run) -> str:
    lines = []
    for turn in record.turns:
        for message in (turn.message, turn.reply):
            if message is not None:
                text = message.text[:MESSAGE_MOST] + ("…" if len(message.text) > MESSAGE_MOST else "")
                lines.append(f"turn {turn.number}, {message.role} ({message.author}): {text}")
    return "\n".join(lines)


def _firings(record: Run) -> str:
    firings = record.firings()
    lines = [
        f"{firing.source}: {firing.trigger_id} {'fired' if firing.ok else 'failed'}"
        + (f" in turn {firing.turn}" if firing.turn else " before the first message")
        + (f", provoked by {json.dumps(dict(firing.provoked_by), ensure_ascii=False)}" if firing.provoked_by else "")
        for firing in firings[-FIRINGS_MOST:]
    ]
    more = [f"({len(firings) - FIRINGS_MOST} earlier ones left out)"] if len(firings) > FIRINGS_MOST else []
    return "\n".join(more + lines) or "none"


# -- facts


def _known(run: RunContext) -> Mapping[str, Any]:
    """What paths lead into: the notes of steps, and the verifications so far."""
    verifications = {
        key: {"score": found.score, "results": found.results, **found.details}
        for key, found in run.verifications.items()
    }
    return {**run.metadata, "script_results": run.script_results, "verifications": verifications}


def _look_up(known: Any, path: str) -> str:
    """The value at a path: keys of objects and indices of lists, with dots between them."""
    found = known
    for part in path.split("."):
        if isinstance(found, Mapping) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return "(not available)"
    return render_fact(found)


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``rubrics_verifier``."""
    register("rubrics_verifier", RubricsVerifier)

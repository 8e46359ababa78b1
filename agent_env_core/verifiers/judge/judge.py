"""Puts a case before a model and gets a verdict that holds, or none."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env_core.errors import EpisodeError, ModelError, describe
from agent_env_core.models import ChatModel, Message
from agent_env_core.models.structured import complete_json, read_json
from agent_env_core.verifiers.judge import words
from agent_env_core.verifiers.judge.case import Case, evidence, instructions, keyed
from agent_env_core.verifiers.judge.criteria import Criterion
from agent_env_core.verifiers.judge.formats import Form, Verdict

log = logging.getLogger(__name__)

ASKS = 3
"""How often one question is put at most, the repairs included."""
SHORT = 20
"""A justification of fewer characters says next to nothing."""


@dataclass(frozen=True)
class Judge:
    """A model that scores.

    Attributes:
        model: The model.
        form: The form of its verdicts.
        timeout: Seconds for a verdict: all criteria, tries and repairs together.
        batch_size: How many criteria go into one question; None puts them all into one.
        at_once: How many questions are under way at the same time.
    """

    model: ChatModel
    form: Form
    timeout: float
    batch_size: int | None = None
    at_once: int = 4

    async def grade(self, case: Case, criteria: Sequence[Criterion]) -> Verdict:
        """The verdict on a case. Its details count what had to be asked again, as ``judge_output_retries``.

        Raises:
            EpisodeError: There is none: the model can't be reached, or what it says can't be used.
        """
        keys = keyed(criteria)
        names, size = list(keys), self.batch_size or max(1, len(keys))
        batches = [names[at : at + size] for at in range(0, len(names), size)] or [[]]
        slots = asyncio.Semaphore(self.at_once)
        deadline = time.monotonic() + self.timeout

        async def one(batch: list[str]) -> Verdict:
            note = ""
            if len(batches) > 1:
                first = names.index(batch[0]) + 1
                note = words.BATCH.format(first=first, last=first + len(batch) - 1, total=len(names))
            async with slots:
                return await self._ask(case, {key: keys[key] for key in batch}, note, deadline)

        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(one(batch)) for batch in batches]
        except ExceptionGroup as failed:  # the first one tells enough; the group has ended the others
            raise failed.exceptions[0] from None
        return _merged([task.result() for task in asked])

    async def _ask(self, case: Case, criteria: Mapping[str, Criterion], note: str, deadline: float) -> Verdict:
        fence = secrets.token_hex(8)
        question = [
            {"role": "system", "content": instructions(self.form, fence)},
            {"role": "user", "content": evidence(case, criteria, fence, note=note)},
        ]
        messages: list[Message] = list(question)
        for ask in range(1, ASKS + 1):
            said = await self._complete(messages, deadline)
            try:
                verdict = self.form.read(_object(said), criteria)
            except ValueError as exc:
                fault, again = str(exc), words.REPAIR.format(fault=exc)
            else:
                if self.batch_size is None or ask == ASKS or not _in_bulk(verdict.rows):
                    verdict.details["judge_output_retries"] = ask - 1
                    return verdict
                fault, again = "its justifications are the same for many criteria", words.BULK
            log.info("the judge %s is asked again (%d of %d): %s", self.model.model, ask, ASKS, fault)
            messages = [*question, {"role": "assistant", "content": said}, {"role": "user", "content": again}]
        reason = f"the judge {self.model.model!r} gave no verdict that can be used, {ASKS} times: {fault}"
        raise EpisodeError("verify", reason, retryable=True)

    async def _complete(self, messages: Sequence[Message], deadline: float) -> str:
        left = deadline - time.monotonic()
        try:
            if left <= 0:
                raise ModelError(f"the {self.timeout:g}s for a verdict are over", retryable=True)
            answer = await complete_json(self.model, messages, self.form.schema, name="verdict", timeout=left)
        except ModelError as exc:
            raise EpisodeError(
                "verify", f"the judge gave no verdict: {describe(exc)}", retryable=exc.retryable
            ) from exc
        return answer.text


def _object(said: str) -> Mapping[str, Any]:
    try:
        found = read_json(said)
    except ValueError as exc:
        raise ValueError(f"it is no JSON object ({exc})") from exc
    if not isinstance(found, Mapping):
        raise ValueError("it is no JSON object")
    return found


def _in_bulk(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a verdict looks as if it was given to all criteria at once, without a look at each."""
    reasons = [row["justification"].strip().lower().rstrip(".!") for row in rows]
    if not reasons:
        return False
    most = max(Counter(reasons).values())
    return most >= max(5, len(reasons) / 4) or 2 * sum(len(reason) < SHORT for reason in reasons) >= len(reasons)


def _merged(verdicts: Sequence[Verdict]) -> Verdict:
    if len(verdicts) == 1:
        return verdicts[0]
    again = sum(verdict.details["judge_output_retries"] for verdict in verdicts)
    rows = [row for verdict in verdicts for row in verdict.rows]
    return Verdict(rows, details={"judge_output_retries": again, "judge_batches": len(verdicts)})

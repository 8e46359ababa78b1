"""``prompt_agent``: asks an agent something and waits for its reply."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import Phase, describe
from agent_env_core.hookspecs import hookimpl
from agent_env_core.models import ModelSettings
from agent_env_core.models.settings import USER_VARIABLE
from agent_env_core.models.structured import read_json
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import Exchange, PlayedAgent, PromptRequest, PromptResponse, RunContext
from agent_env_core.steps.placed import DEFAULT_AGENT
from agent_env_core.steps.prompt_parts import files_among, part_faults, parts_text
from agent_env_core.steps.run_record import clocks
from agent_env_core.steps.simulated_user import Said, SimulatedUser

DEFAULT_USER = "human_agent"
"""The user's name, where a step gives none."""


class PromptAgent(TaskStep):
    """Prompts an agent: one turn, or a conversation with a simulated user.

    Of the format's fields, those about the agent's model and harness (``model``, ``max_turns``, ``effort`` and the
    like) concern what the model that plays takes the place of.

    Attributes:
        prompt: What is asked.
        parts: The same in parts: texts, and data, which is shown as JSON.
        prompt_id: The name verifiers know it by.
        agent_name: Who is asked.
        timeout_seconds: Part of the format. It bounds an evaluation; a played turn has no deadline of its own, since a
            trainer generates for a whole batch before it goes on with any turn of it.
        max_turns: How many answers of the model a turn may take, in evaluations.
        model_params: Fields of every request to the model, e.g. ``temperature``, in evaluations.
        system_prompt: Replaces the agent's, for this prompt and those after it.
        context_id: Prompts with the same one are one conversation; without one, a prompt is a conversation by itself.
        max_conversation_turns: Above 1, a model plays the user: each of its messages is one more turn of the agent, up
            to so many in all. It may end the conversation earlier, and so does an empty reply.
        user_agent_name: Who the user is: the agent of this name, whose system prompt describes the user.
        user_model: The model that plays the user, unless the host names one.
        user_agent_timeout_seconds: Seconds that one message of the user may take.
        user_output_format: The form of the user's answers: a ``schema`` with ``message``, ``done`` and more.
        output_format: The form that the reply should have, for evaluations: ``{"type": "json_schema", "schema": …}``.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("snapshot_config.env_id", "env"),)
    phase: ClassVar[Phase] = "turn"

    prompt: str | None = None
    parts: list[dict[str, Any]] | None = None
    prompt_id: str = Field(default_factory=lambda: str(uuid.uuid4()), min_length=1)
    agent_name: str = Field(default=DEFAULT_AGENT, min_length=1)
    timeout_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    max_turns: int | None = Field(default=None, ge=1)
    model_params: dict[str, Any] = Field(default_factory=dict)
    system_prompt: str | None = None
    context_id: str | None = None
    max_conversation_turns: int = Field(default=1, ge=1)
    user_agent_name: str = Field(default=DEFAULT_USER, min_length=1)
    user_a2a_url: str | None = None
    user_agent_timeout_seconds: float = Field(default=600, gt=0, allow_inf_nan=False)
    user_model: str | None = None
    user_output_format: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    agentenv_tools: Any = None
    snapshot_config: Any = None

    @model_validator(mode="after")
    def _whole(self) -> PromptAgent:
        if (self.prompt is None) == (self.parts is None):
            raise ValueError("set exactly one of prompt and parts")
        if fault := next(iter(part_faults(self.parts)), "") if self.parts is not None else "":
            raise ValueError(fault)
        for name in ("output_format", "user_output_format"):
            form = getattr(self, name)
            if form is not None and not isinstance(form.get("schema"), dict):
                raise ValueError(f"{name}: should be {{'type': 'json_schema', 'schema': …}}, not {form!r:.80}")
        return self

    @property
    def text(self) -> str:
        """The prompt as one text."""
        return (self.prompt or "") if self.parts is None else parts_text(self.parts)

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what a player from outside can't be asked for."""
        lines = super().refusals(played)
        if self.agent_name not in played:
            return [
                *lines,
                f"agent_name={self.agent_name!r}: only agents that are played from outside can be prompted",
            ]
        if files := files_among(self.parts or ()):
            lines.append(f"parts: files can't be shown to the model yet: {', '.join(files)}")
        if self.max_conversation_turns > 1 and self.user_a2a_url is not None:
            lines.append(f"user_a2a_url={self.user_a2a_url!r}: only a model can play the user; leave it out")
        return lines + self.unsupported(agentenv_tools=None, snapshot_config=None)

    def lacks(self, models: ModelSettings) -> list[str]:
        """Names the model that plays the user, where there is none."""
        if self.max_conversation_turns == 1:
            return []
        lack = models.lacks(models.user_model or self.user_model, USER_VARIABLE)
        needs = f"max_conversation_turns={self.max_conversation_turns} needs a model that plays the user"
        return [f"{needs}: {lack}"] if lack else []

    async def run(self, run: RunContext) -> None:
        """Has the conversation, and records what came of it, whether or not it came to its end."""
        agent = run.agent(self.agent_name)
        if self.system_prompt is not None:
            run.before[self.id] = agent.system_prompt
            agent.system_prompt = self.system_prompt
        exchanges: list[Exchange] = []
        try:
            if self.max_conversation_turns == 1:
                await self._ask(run, agent, self.context_id or uuid.uuid4().hex, Said(self.text), exchanges)
            else:
                await self._converse(run, agent, exchanges)
        except Exception as exc:
            run.responses.append(self._response(agent, exchanges, describe(exc)))
            raise
        run.responses.append(self._response(agent, exchanges))

    async def _converse(self, run: RunContext, agent: PlayedAgent, exchanges: list[Exchange]) -> None:
        conversation = self.context_id or uuid.uuid4().hex
        persona = run.agents.get(self.user_agent_name)
        form = self.user_output_format["schema"] if self.user_output_format is not None else None
        async with run.models.open(run.models.user_model or self.user_model) as model:
            user = SimulatedUser(
                model, persona.system_prompt if persona else None, form, self.user_agent_timeout_seconds
            )
            said = Said(self.text)
            while not said.done:
                await self._ask(run, agent, conversation, said, exchanges)
                replied = (exchanges[-1].response or "").strip()
                if not replied or len(exchanges) == self.max_conversation_turns:
                    return
                said = await user.answer(exchanges)

    async def _ask(
        self, run: RunContext, agent: PlayedAgent, conversation: str, said: Said, exchanges: list[Exchange]
    ) -> None:
        """One turn. It is among ``exchanges`` before it has a reply, so that it stays on record without one."""
        parts = tuple(self.parts or ()) if not exchanges else ()
        request = PromptRequest(self.id, said.message, agent.system_prompt, agent, conversation)
        asked = Exchange(
            said.message, datetime.now(UTC), self.user_agent_name, parts=parts, user_sim=dict(said.fields) or None,
            clocks=(clocks(run), None),
        )  # fmt: skip
        exchanges.append(asked)
        try:
            reply = await run.play(request)
        finally:
            exchanges[-1] = replace(asked, uses=tuple(request.uses))
        exchanges[-1] = replace(
            exchanges[-1], response=reply, replied_at=datetime.now(UTC), clocks=(asked.clocks[0], clocks(run))
        )

    def _response(self, agent: PlayedAgent, exchanges: Sequence[Exchange], error: str = "") -> PromptResponse:
        last = exchanges[-1] if exchanges else Exchange(self.text, datetime.now(UTC), self.user_agent_name)
        return PromptResponse(
            self.prompt_id,
            self.id,
            agent.name,
            self.text,
            exchanges[0].sent_at if exchanges else last.sent_at,
            response=None if error else last.response,
            replied_at=last.replied_at,
            error=error,
            exchanges=tuple(exchanges),
            structured_output=self._structured(last.response) if self.output_format and not error else None,
        )

    def _structured(self, reply: str | None) -> Any:
        """The reply as JSON; None where it isn't of the form that was asked for, which is the agent's to answer for."""
        from jsonschema import ValidationError, validators

        assert self.output_format is not None
        try:
            found = read_json(reply or "")
            schema = self.output_format["schema"]
            validators.validator_for(schema)(schema).validate(found)
        except (ValueError, ValidationError):
            return None
        return found

    async def undo(self, run: RunContext) -> None:
        """Forgets what was said. The conversation itself goes on: a real agent can't be made to forget either."""
        if self.id in run.before and self.agent_name in run.agents:
            run.agents[self.agent_name].system_prompt = run.before.pop(self.id)
        run.responses[:] = [response for response in run.responses if response.step_id != self.id]


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``prompt_agent``."""
    register("prompt_agent", PromptAgent)

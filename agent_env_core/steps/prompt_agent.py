"""``prompt_agent``: asks an agent something and waits for its reply."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import Phase, describe
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import PromptRequest, PromptResponse, RunContext
from agent_env_core.steps.placed import DEFAULT_AGENT


class PromptAgent(TaskStep):
    """Prompts an agent: one turn.

    Of the format's fields, those about the agent's model and harness (``model``, ``max_turns``, ``effort`` and the
    like) concern what the trainer's model takes the place of. ``context_id`` groups prompts into one conversation,
    which whoever plays the turns keeps.

    Attributes:
        prompt: What is asked.
        parts: The same in parts; can't be played yet.
        prompt_id: The name verifiers know it by.
        agent_name: Who is asked.
        timeout_seconds: Part of the format. It bounds an evaluation; a played turn has no deadline of its own, since a
            trainer generates for a whole batch before it goes on with any turn of it.
        max_turns: How many answers of the model a turn may take, in evaluations.
        model_params: Fields of every request to the model, e.g. ``temperature``, in evaluations.
        system_prompt: Replaces the agent's, for this prompt and those after it.
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
    output_format: Any = None
    agentenv_tools: Any = None
    snapshot_config: Any = None

    @model_validator(mode="after")
    def _one_prompt(self) -> PromptAgent:
        if (self.prompt is None) == (self.parts is None):
            raise ValueError("set exactly one of prompt and parts")
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what a player from outside can't be asked for."""
        lines = super().refusals(played)
        if self.agent_name not in played:
            return [
                *lines,
                f"agent_name={self.agent_name!r}: only agents that the trainer plays can be prompted so far",
            ]
        if self.parts is not None:
            lines.append("parts: a prompt in parts can't be played; write it as prompt")
        if self.max_conversation_turns > 1:
            lines.append(f"max_conversation_turns={self.max_conversation_turns}: there is no simulated user")
        return lines + self.unsupported(output_format=None, agentenv_tools=None, snapshot_config=None)

    async def run(self, run: RunContext) -> None:
        """Has the prompt answered, and records what came of it."""
        agent = run.agent(self.agent_name)
        if self.system_prompt is not None:
            agent.system_prompt = self.system_prompt
        prompt = self.prompt or ""
        sent_at = datetime.now(UTC)
        asked = (self.prompt_id, self.id, agent.name, prompt, sent_at)
        try:
            conversation = self.context_id or uuid.uuid4().hex
            reply = await run.play(PromptRequest(self.id, prompt, agent.system_prompt, agent, conversation))
        except Exception as exc:
            run.responses.append(PromptResponse(*asked, error=describe(exc)))
            raise
        run.responses.append(PromptResponse(*asked, response=reply, replied_at=datetime.now(UTC)))

    async def undo(self, run: RunContext) -> None:
        """Forgets what was said. The conversation itself goes on: a real agent can't be made to forget either."""
        run.responses[:] = [response for response in run.responses if response.step_id != self.id]


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``prompt_agent``."""
    register("prompt_agent", PromptAgent)

"""What a step type is: a class that reads one object of a task file and runs it.

A plugin adds one by subclassing :class:`TaskStep` (or :class:`ScoringStep`) and registering the class through the hook
``agent_env_task_steps``, under an entry point named like the type.
"""

from __future__ import annotations

import difflib
import uuid
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agent_env_core.bundle.references import Reference, StepDeclaration, waits
from agent_env_core.errors import EpisodeError, Phase
from agent_env_core.models import ModelSettings
from agent_env_core.plugins import CORE, plugins
from agent_env_core.steps.context import RunContext
from agent_env_core.steps.placed import Plan, SandboxOrder
from agent_env_core.verifiers.aggregate import aggregate

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle


class TaskStep(BaseModel):
    """One step of a task. Fields that a class doesn't know are ignored, as the format has it; types aren't coerced.

    Attributes:
        id: Unique in its task.
        type: The name of the step type.
        depends_on: Ids of steps that must have ended before; None means all earlier ones.
        fail_task_on_error: False makes the step tolerant: when it fails, the run goes on.
        retry_config: Which step to go back to when this one fails, and how often. Only evaluations do: a trainer
            can't be asked for a turn that it has ended.
        metadata: Free notes of the author.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    references: ClassVar[tuple[Reference, ...]] = ()
    """The fields that name entities of the bundle; the reader turns them into ids. A plugin's class that has none says
    so by setting it empty: without it, a text of its steps that is the name of an entity is taken for a mistake."""
    phase: ClassVar[Phase] = "setup"
    """Where in an episode's life its failures and its time belong."""

    id: str = Field(min_length=1)
    type: str
    depends_on: list[str] | None = None
    fail_task_on_error: bool = True
    retry_config: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @field_validator("depends_on", mode="before")
    @classmethod
    def _plain_ids(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return [item.get("task_step_id") if isinstance(item, Mapping) else item for item in value]

    @classmethod
    def faults(cls, step: Mapping[str, Any], *, seeded: bool = True) -> list[str]:
        """What keeps an object of a task file from being a step of this type: one line each.

        Faults of the fields that all steps have are left to the bundle reader.

        Args:
            step: The object.
            seeded: Whether ``<key>`` in its texts is replaced already; a value with one left may be any other yet.
        """
        try:
            cls.model_validate(step)
        except ValidationError as exc:
            errors = exc.errors(include_url=False, include_context=False)
            errors = [error for error in errors if seeded or not waits(error["input"])]
            return [_line(error) for error in errors if error["loc"][:1] not in _COMMON]
        return []

    def refusals(self, played: Collection[str]) -> list[str]:
        """What keeps this step from running in an episode: one line each, naming the field and its value.

        Args:
            played: The agents that are played from outside, or as users by a model.
        """
        return []

    def misfits(self, bundle: Bundle) -> list[str]:
        """What this step names in its bundle and can't use: one line each, naming the field and its value.

        Args:
            bundle: The bundle; the step's references are ids of what is in it, or of what an earlier step makes.
        """
        return []

    def lacks(self, models: ModelSettings) -> list[str]:
        """What this step needs and the host it would run on has not: one line each, with the setting that mends it.

        Args:
            models: The host's models.
        """
        return []

    def orders(self, plan: Plan) -> Sequence[SandboxOrder]:
        """The sandboxes that this step makes beside those of envs.

        They are looked at before anything is played: their images are prepared, and a task whose sandboxes can't be had
        is left out.
        """
        return ()

    async def run(self, run: RunContext) -> None:
        """Does what the step is for. What it raises is the step's failure; plain exceptions are attributed to it."""
        raise NotImplementedError(f"the step type {self.type!r} has no run()")

    async def undo(self, run: RunContext) -> None:
        """Takes back what :meth:`run` left in ``run``, whether it ended well or not: the step is to run again."""

    def unsupported(self, **harmless: Any) -> list[str]:
        """Lines for fields that are set to something that can't be kept: each one given with its harmless value."""
        return [
            f"{name}={getattr(self, name)!r} isn't supported yet"
            for name, value in harmless.items()
            if getattr(self, name) != value
        ]


_COMMON = frozenset((name,) for name in ("id", "type", "depends_on", "fail_task_on_error", "retry_config"))


class ScoringStep(TaskStep):
    """A step that records a score.

    Attributes:
        verifier_id: The key of its verification.
        score_aggregator: How its rows become the score.
    """

    phase: ClassVar[Phase] = "verify"

    verifier_id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1)
    score_aggregator: Literal["all_pass", "any_pass", "weighted_average"] = "all_pass"

    def score(self, rows: list[dict[str, Any]]) -> float:
        """The score of checked rows.

        Raises:
            EpisodeError: They can't be scored.
        """
        try:
            return aggregate(self.score_aggregator, rows)
        except ValueError as exc:
            raise EpisodeError("verify", f"step {self.id!r} ({self.type}): {exc}") from exc

    async def undo(self, run: RunContext) -> None:
        """Forgets what it found."""
        run.verifications.pop(self.verifier_id, None)


def _line(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"])
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "missing":
        return f"{place} is missing"
    if not place:
        return message
    value = repr(error["input"])
    return f"{place}: {message[:1].lower()}{message[1:]}, not {value[:80]}{'…' if len(value) > 80 else ''}"


def misspelt(step: Mapping[str, Any]) -> dict[str, str]:
    """Fields of a step that its type doesn't know, by what they resemble: the format has such fields be ignored.

    Args:
        step: A step as the bundle reader leaves it.
    """
    known = plugins().step_type(step["type"]).model_fields
    close = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.85) for name in step if name not in known}
    return {name: meant[0] for name, meant in close.items() if meant and meant[0] not in step}


LATER = frozenset({
    "build_mcp_cli", "combine_universe_verdicts", "deploy_human_agent", "peer_agents", "register_agent_triggers",
    "review", "snapshot_agent_state", "validation_gate_aggregator", "verify_a2a_agent_card",
    "verify_a2a_agent_config_identity", "verify_a2a_agent_mcp", "verify_a2a_core_protocol", "verify_a2a_install",
    "verify_a2a_modalities", "verify_a2a_peer_agents", "verify_a2a_role", "verify_a2a_skill_config",
    "verify_a2a_snapshot", "verify_a2a_system_prompt", "verify_a2a_trajectory", "verify_env_card",
    "verify_env_core_protocol", "verify_mcp_env_assessment", "verify_mcp_tool_schema", "verify_spec_conformance",
    "verify_universe_load_export_roundtrip",
})  # fmt: skip
"""Step types of the published format that nothing here runs. A plugin may bring them."""


def declaration(type_name: str) -> StepDeclaration:
    """What the bundle reader needs to know of a step type.

    Raises:
        PluginError: There is no such type, or its plugin is broken.
    """
    owner = plugins().owner(type_name)
    if owner is None and type_name in LATER:
        return StepDeclaration(type_name, unsupported="is part of the format, and not supported by this version")
    step = plugins().step_type(type_name)
    says = owner == CORE or any("references" in vars(base) for base in step.__mro__ if base is not TaskStep)
    return StepDeclaration(type_name, step.references if says else None, partial(step.faults, seeded=False))

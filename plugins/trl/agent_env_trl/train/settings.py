"""What a training file may say."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from agent_env_core.errors import Problem, SetupError

Keywords = dict[str, Any]


class Settings(BaseModel):
    """A training file.

    Attributes:
        bundle: The bundle to serve on this machine: its folder, the name of an installed one, or several by split.
        url: The server to train on instead, or several that serve the same bundle.
        split: The split to train on.
        eval_split: The split to evaluate on.
        sandbox: Where a local server deploys envs.
        reward: A scoring step's id, or a combiner.
        max_concurrent_envs: Sessions of a local server; without it, as many as the run holds.
        warm: Deployments that a local server makes ahead.
        tool_timeout: Seconds for one tool call.
        reset_timeout: Seconds for a reset.
        answer_limit: Characters of a tool's answer that the model is shown.
        model: The model's name on a hub, or its folder.
        trainer: The trainer adapter's name.
        arguments: The fields of the trainer's configuration.
        peft: The fields of a ``peft.LoraConfig``; without it the whole model is trained.
        resume: True goes on from the newest checkpoint in the output folder, a path from that one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bundle: str | dict[str, str] | None = None
    url: str | list[str] | None = None
    split: str = "all"
    eval_split: str | None = None
    sandbox: str | None = None
    reward: str | None = None
    max_concurrent_envs: PositiveInt | None = None
    warm: Annotated[int, Field(ge=0)] | None = None
    tool_timeout: PositiveFloat = 60
    reset_timeout: PositiveFloat = 600
    answer_limit: PositiveInt | None = None
    model: str
    trainer: str = "grpo"
    arguments: Keywords = Field(default_factory=dict)
    peft: Keywords | None = None
    resume: bool | str = False

    @classmethod
    def of(cls, document: Mapping[str, Any], path: Path) -> Settings:
        """Reads what ``path`` holds.

        Raises:
            SetupError: It holds something else; every problem is listed.
        """
        problems = []
        try:
            settings = cls.model_validate(document)
        except ValidationError as exc:
            found: dict[str, list[Any]] = {}  # a union tells each of its failures
            for error in exc.errors():
                found.setdefault(str(error["loc"][0]), []).append(error)
            problems = [_problem(key, errors, document.get(key)) for key, errors in found.items()]
        else:
            problems = list(settings._contradictions())
        if problems:
            raise SetupError(str(path), problems)
        return settings

    def _contradictions(self) -> Iterable[Problem]:
        if (self.bundle is None) == (self.url is None):
            yield Problem("bundle", "give either bundle, which is served here, or url, where it's served already")
        if self.url is not None:
            for key in ("sandbox", "max_concurrent_envs", "warm"):
                if getattr(self, key) is not None:
                    yield Problem(
                        key, "is the server's own to set", "leave it out beside url, and give it to agent-env serve"
                    )


def unknown(names: Iterable[str], known: Iterable[str], place: str, what: str) -> list[Problem]:
    """A problem for each of ``names`` that isn't among ``known``, with the one that may be meant."""
    known = list(known)
    problems = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            problems.append(
                Problem(f"{place}{name}", f"{what} has no such field", f"did you mean {close[0]}?" if close else "")
            )
    return problems


def _problem(key: str, errors: Sequence[Mapping[str, Any]], given: Any) -> Problem:
    kind = errors[0]["type"]
    if kind == "extra_forbidden":
        return unknown([key], Settings.model_fields, "", "a training file")[0]
    if kind == "missing":
        return Problem(key, "is missing", "name the model, e.g. Qwen/Qwen3-4B or a folder")
    said = dict.fromkeys(str(error["msg"]).lower() for error in errors)
    return Problem(key, f"{given!r} can't be: {', or '.join(said)}")

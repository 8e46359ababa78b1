"""What every environment that TRL builds can do: start an episode, run its tools, read its reward.

TRL offers each public method but ``reset`` and ``get_reward`` to the model as a tool, so nothing else here is public.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakSet

from agent_env_core.adapters import Combiner
from agent_env_core.client import Address, ForeignTools, Offered, Outcome, Session
from agent_env_core.errors import AgentEnvError, EpisodeError
from agent_env_core.texts import shortened
from agent_env_trl.rollout_process import Reporter

logger = logging.getLogger("agent_env.training.trl")

ENDED = "The episode has ended."
FAILED = "The episode has failed, and no tool answers any more."
"""What a tool says once the reason was told: a model that calls on and on would fill its context with the reason."""


class ToolFailure(AgentEnvError):
    """A tool call that failed. TRL shows its text to the model, and counts it."""


@dataclass(frozen=True)
class Spec:
    """All that an environment class is made from: what its pickle holds. No secret, no socket, no lock.

    Attributes:
        name: The class's name, which TRL names its reward column after.
        hosts: The servers' URLs, each with the sessions it allows, where it says so.
        offered: Names and digest of the tools.
        tools: The tools' descriptions and schemas, as JSON.
        tool_timeout: Seconds for one tool call.
        reset_timeout: Seconds for a reset, and for each ``end_turn``.
        answer_limit: Characters of a tool's answer that the model is shown; None is all of them.
        combine: The reward from the scores; None takes the server's.
        together: Whether the first ``get_reward`` of a batch means that every rollout of the process is complete.
        plain: Whether the server speaks OpenEnv alone: a task's words may then come with its reset.
        ident: Tells classes apart: one class for each in a process.
    """

    name: str
    hosts: tuple[tuple[str, int | None], ...]
    offered: Offered
    tools: str
    tool_timeout: float
    reset_timeout: float
    answer_limit: int | None = None
    combine: Combiner | None = field(default=None, compare=False)
    together: bool = False
    plain: bool = False
    ident: str = ""


class Environment:
    """One session on the server, which plays one episode after another. TRL makes it once and resets it often.

    Making one costs nothing, and touches no network: TRL makes some only to look at them.
    """

    _spec: ClassVar[Spec]
    _instances: ClassVar[WeakSet[Environment]]
    _server_closed: ClassVar[bool] = False
    _reporter: ClassVar[Reporter | None] = None  # in a rollout process, where nothing may be raised

    def __init__(self) -> None:
        spec = self._spec
        self._session = Session(
            *(Address.of(url, limit=limit) for url, limit in spec.hosts),
            tool_timeout=spec.tool_timeout,
            reset_timeout=spec.reset_timeout,
            tools=spec.offered,
            plain=spec.plain,
        )
        self._failure_told = False
        self._instances.add(self)

    def reset(self, **row: Any) -> str | None:
        """Starts the episode of a dataset row, and returns while its env deploys.

        Args:
            **row: The row's columns; ``split``, ``index`` and ``task_id`` say what to play.

        Returns:
            What the model is to see besides the row's prompt: nothing, except where a server that isn't ours tells a
            task's words at its reset only, which then is waited for.

        Raises:
            CapacityError: The server is at its session limit; the message says which limit to raise.
            TypeError: The row says not what to play.
            AgentEnvError: ``AgentEnv.close`` has stopped the server.

        In a rollout process of ``AsyncGRPOTrainer`` these are raised by the trainer.
        """
        return self._start(row) if self._reporter is None else self._reporter.guard(lambda: self._start(row))

    def _start(self, row: dict[str, Any]) -> str | None:
        if self._server_closed:
            raise AgentEnvError("the AgentEnv of this environment was closed, and its server with it: make a new one")
        if row.get("split") is None or row.get("index") is None:
            raise TypeError(
                f"a row says what to play by its columns split, index and task_id, and this one has: {', '.join(row)};"
                " train on env.dataset, or keep these columns in your own dataset"
            )
        first, self._failure_told = not self._session.opened, False
        self._session.reset(str(row["split"]), int(row["index"]), row.get("task_id"))
        if first and self._spec.together:  # the trainer has made the others for the same batch, and resets them next
            for other in list(self._instances):
                other._session.dial()
        if not self._spec.plain or any(message.get("content") for message in row.get("prompt") or ()):
            return None
        try:
            return self._session.turn().prompt or None
        except EpisodeError:
            return None  # get_reward tells it

    def get_reward(self) -> float | None:
        """The reward of the episode; None, with the reason logged, when it ended without a score.

        A turn the model left open is ended first, with an empty reply.

        Raises:
            ForeignTools: The task offered other tools than the model was shown, so training must stop. In a rollout
                process of ``AsyncGRPOTrainer`` it's raised by the trainer.
        """
        return self._score() if self._reporter is None else self._reporter.guard(self._score)

    def _score(self) -> float | None:
        combine = self._spec.combine
        try:
            outcome = self._outcome()
            reward = outcome.reward if combine is None else combine(outcome.scores)
            if reward is None:
                raise EpisodeError("reward", _why_none(outcome, combine))
        except ForeignTools:
            raise
        except AgentEnvError as exc:
            logger.warning("rollout left unscored: %s", exc.reason if isinstance(exc, EpisodeError) else exc)
            return None
        return reward

    def _scores(self) -> Mapping[str, float]:
        """The episode's scores; none when it ended without."""
        try:
            return self._outcome().scores
        except ForeignTools:
            raise
        except AgentEnvError:
            return {}  # `get_reward` says why

    def _outcome(self) -> Outcome:
        if self._spec.together:
            for other in list(self._instances):
                other._session.conclude()
        return self._session.outcome()

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            answer = self._session.call(name, arguments)
        except EpisodeError as exc:
            raise self._failure(exc) from None
        except TypeError as exc:  # a model writes JSON; a person who plays by hand may not
            raise ToolFailure(f"{name} wasn't called: {exc}") from None
        text = shortened(answer.text, self._spec.answer_limit)
        if answer.is_error:
            raise ToolFailure(text)
        return text

    def _failure(self, error: EpisodeError) -> ToolFailure:
        """What the model is to see of an episode that is over: the reason, once."""
        told, self._failure_told = self._failure_told, True
        return ToolFailure(FAILED if told else error.reason)

    def _end_turn(self, response: str | None) -> str:
        try:
            before = self._session.turn()
            after = self._session.end_turn(response)
        except EpisodeError as exc:
            raise self._failure(exc) from None
        if after is None:
            return ENDED
        if after.system_prompt and after.system_prompt != before.system_prompt:
            return f"{after.system_prompt}\n\n{after.prompt}"
        return after.prompt


def _why_none(outcome: Outcome, combine: Combiner | None) -> str:
    if combine is None and outcome.problem:
        return outcome.problem
    if not outcome.scores:
        return "the task records no score; give it a verifier step, or leave it out of the split"
    scores = ", ".join(f"{key}={value:g}" for key, value in outcome.scores.items())
    return f"the reward made of its scores ({scores}) is None"

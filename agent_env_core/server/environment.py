"""The OpenEnv environment: one a session, one episode at a time.

OpenEnv calls it on the session's own thread, one call after another; the episode runs on the engine's loop. What goes
wrong is an observation, never an exception: a trainer reads it, and the session goes on with the next reset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.env_server.types import EnvironmentMetadata, Observation

from agent_env_core.errors import EpisodeError
from agent_env_core.play.end_turn import END_TURN
from agent_env_core.server.catalog import NoSuchTask, Place
from agent_env_core.server.models import EpisodeState, ResetObservation
from agent_env_core.server.rollout import Deadlines, Rollout, tools_digest
from agent_env_core.server.toolsets import described

if TYPE_CHECKING:
    from agent_env_core.play.turn import Tool as TurnTool
    from agent_env_core.play.turn import Turn
    from agent_env_core.server.service import Service

logger = logging.getLogger(__name__)

ENDED = "the episode has ended; call reset"
GRACE_SECONDS = 30.0
"""How much longer than an episode's own deadline a session's thread waits for the engine."""
FAILURES = {"unknown": ToolErrorType.TOOL_NOT_FOUND}


class BundleEnvironment(Environment):  # type: ignore[misc]  # openenv ships no types
    """Plays the tasks of a served bundle. Made cheaply, and often only to be asked for its tasks.

    Args:
        service: The server's parts.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._key = ""
        self._place: Place | None = None
        self._rollout: Rollout | None = None
        self._state = EpisodeState()
        self._over = True
        self._closed = False
        self._changing = threading.Lock()

    # -- OpenEnv's interface

    def reset(self, seed: int | None = None, episode_id: str | None = None, **keys: Any) -> Observation:
        """Starts a task and returns at its first turn. What still runs is abandoned first.

        Args:
            seed: Ignored; a task is what ``split`` and ``index`` name.
            episode_id: What the client calls the episode; our name for it otherwise.
            **keys: ``split`` and ``index``, or ``task_id``, or neither for the first task; ``tool_timeout`` and
                ``reset_timeout`` in seconds; ``session``, the key that our routes know the session by. Others are
                ignored: OpenEnv's clients send what they like.
        """
        self._refuse_closed()
        self.abandon("the session was reset")
        self._bind(keys.get("session"))
        self._place, self._over, self._state = None, True, EpisodeState(episode_id=_text(episode_id))
        try:
            deadlines = _deadlines(keys)
            self._place = self._service.catalog.find(keys.get("split"), keys.get("index"), keys.get("task_id"))
        except (NoSuchTask, ValueError) as exc:
            return ResetObservation(done=True, metadata=self._error(EpisodeError("queue", str(exc))))
        return self._open(self._place, deadlines, _text(episode_id))

    def _open(self, place: Place, deadlines: Deadlines, episode_id: str | None) -> Observation:
        task = place.described
        rollout = Rollout(self._service.engine, place, deadlines, episode_id)
        with self._changing:
            self._rollout = rollout
        self._state = EpisodeState(
            episode_id=episode_id, task_id=task["id"], task_name=task["name"], split=place.split, index=place.index
        )
        seconds = deadlines.reset + GRACE_SECONDS
        try:
            turn = self._service.engine.call(rollout.open(), seconds=seconds, phase="deploy")
        except EpisodeError as exc:
            return ResetObservation(done=True, metadata=self._error(exc))
        self._over = False
        self._move(episode_id=rollout.episode_id, turn=turn.step_id, done=False)
        words = {"prompt": turn.prompt, "system_prompt": turn.system_prompt, "task": task}
        return ResetObservation(done=False, metadata={**words, "turn": _where(turn, rollout)})

    def step(self, action: Any, timeout_s: float | None = None, **keys: Any) -> Observation:
        """Lists the tools, calls one, or ends the turn by calling ``end_turn``.

        Args:
            action: OpenEnv's ``ListToolsAction`` or ``CallToolAction``.
            timeout_s: Ignored; the reset says how long a tool may take.
            **keys: Ignored.
        """
        self._refuse_closed()
        if isinstance(action, ListToolsAction):
            return self._list()
        if not isinstance(action, CallToolAction):
            raise TypeError(f"{type(action).__name__} is neither a call of a tool nor the list of tools")
        rollout = self._rollout
        if self._over or rollout is None:
            self._move(done=True)  # it may have been ended from outside
            error = ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=ENDED)
            told = self._error(EpisodeError("turn", ENDED))
            return CallToolObservation(tool_name=action.tool_name, done=True, error=error, metadata=told)
        self._move(step_count=self._state.step_count + 1)
        if action.tool_name == END_TURN["name"]:
            return self._end(rollout, action.arguments)
        return self._call(rollout, action.tool_name, action.arguments)

    @property
    def state(self) -> EpisodeState:
        """Where the session stands. Asked on the app's own loop, so it only looks."""
        return self._state

    def close(self) -> None:
        """Abandons what runs; its teardown goes on behind. May be called twice, and from any thread."""
        self._closed = True
        self.abandon("the session ended")
        self._service.sessions.unbind(self._key, self)

    def get_metadata(self) -> EnvironmentMetadata:
        """What is served, in words."""
        catalog = self._service.catalog
        return EnvironmentMetadata(
            name=catalog.env_name,
            description=catalog.description or f"The tasks of the bundle {catalog.name}.",
            version=metadata.version("agentenv-framework"),
        )

    # -- OpenEnv's Task API

    def list_splits(self) -> list[str]:
        """The names of the splits."""
        return list(self._service.catalog.splits)

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return len(self._rows(split))

    def list_tasks(self, split: str) -> list[Mapping[str, Any]]:
        """The rows of a split."""
        return list(self._rows(split))

    def get_task(self, split: str, index: int) -> Mapping[str, Any]:
        """One row.

        Raises:
            IndexError: There is none; OpenEnv answers 400.
        """
        rows = self._rows(split)
        if not 0 <= index < len(rows):
            raise IndexError(index)
        return rows[index]

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Mapping[str, Any]]:
        """The rows of a slice."""
        return list(self._rows(split)[start:stop])

    def _rows(self, split: str) -> tuple[Mapping[str, Any], ...]:
        if split not in self._service.catalog.rows:
            raise IndexError(split)
        return self._service.catalog.rows[split]

    # -- from outside the session

    def abandon(self, reason: str, episode_id: str | None = None) -> bool:
        """Ends the episode that runs, if it's the one meant; returns whether there was one. From any thread."""
        with self._changing:
            rollout = self._rollout
            if rollout is None or episode_id not in (None, rollout.episode_id):
                return False
            self._rollout = None
        self._service.engine.post(lambda: rollout.abandon(reason))
        return True

    # -- the parts of a step

    def _list(self) -> Observation:
        rollout = self._rollout
        if self._over or rollout is None:
            known = self._known_tools() if self._place is None else []
            return ListToolsObservation(tools=known, done=True, metadata=self._error(EpisodeError("turn", ENDED)))
        return ListToolsObservation(tools=_listed(rollout.offered))

    def _known_tools(self) -> list[Tool]:
        """What every turn offers, for clients that ask before their first reset; none where tasks differ in it."""
        catalog, seconds = self._service.catalog, Deadlines().reset
        if len(catalog.toolsets) != 1:
            return []
        work = self._service.toolsets.read(catalog, next(iter(catalog.toolsets)), seconds)
        try:
            return _listed(self._service.engine.call(work, seconds=2 * seconds + GRACE_SECONDS, phase="deploy"))
        except EpisodeError as exc:
            logger.warning("the tools couldn't be read: %s", exc.reason)
            return []

    def _call(self, rollout: Rollout, name: str, arguments: Mapping[str, Any]) -> Observation:
        seconds = rollout.deadlines.tool + GRACE_SECONDS
        try:
            result = self._service.engine.call(rollout.call(name, arguments), seconds=seconds, phase="tool")
        except EpisodeError as exc:
            return self._lost(name, exc)
        if result.failure:
            kind = FAILURES.get(result.failure, ToolErrorType.EXECUTION_ERROR)
            return CallToolObservation(tool_name=name, error=ToolError(error_type=kind, message=result.text))
        answer = {
            "content": list(result.content),
            "structured_content": None,
            "meta": None,
            "data": result.text,
            "is_error": False,
        }
        return CallToolObservation(tool_name=name, result=answer)

    def _end(self, rollout: Rollout, arguments: Mapping[str, Any]) -> Observation:
        response = arguments.get("response")
        if not isinstance(response, str | None) or set(arguments) - {"response"}:
            error = ToolError(
                error_type=ToolErrorType.INVALID_ARGS,
                message=f"end_turn takes a response, which is a text, and nothing else; it was given {arguments!r}",
            )
            return CallToolObservation(tool_name="end_turn", error=error)
        seconds = rollout.deadlines.reset + GRACE_SECONDS
        try:
            after = self._service.engine.call(rollout.end(response), seconds=seconds, phase="verify")
        except EpisodeError as exc:
            return self._lost("end_turn", exc)
        if isinstance(after, dict):
            return self._scored(after)
        self._move(turn=after.step_id)
        words = {"prompt": after.prompt, "system_prompt": after.system_prompt}
        where = {"turn": _where(after, rollout)}
        return CallToolObservation(tool_name="end_turn", result=words, metadata=where)

    def _scored(self, scores: Mapping[str, float]) -> Observation:
        assert self._place is not None
        self._over = True
        self._move(done=True)
        told: dict[str, Any] = {"scores": dict(scores), "task": self._place.described}
        try:
            reward = self._place.served.reward(scores)
        except EpisodeError as exc:
            reward = None
            told |= {"status": "error", "error": f"no reward: {exc.reason}", "phase": "reward"}
        return CallToolObservation(tool_name="end_turn", done=True, reward=reward, metadata=told)

    def _lost(self, name: str, error: EpisodeError) -> Observation:
        """The observation of a step in which the episode ended without a score."""
        self._over = True
        self._move(done=True)
        kind = ToolErrorType.TIMEOUT if "didn't answer within" in error.reason else ToolErrorType.TRANSPORT_ERROR
        return CallToolObservation(
            tool_name=name,
            done=True,
            error=ToolError(error_type=kind, message=error.reason),
            metadata=self._error(error),
        )

    def _error(self, error: EpisodeError) -> dict[str, Any]:
        return {
            "status": "error",
            "error": error.reason,
            "phase": error.phase,
            "retryable": error.retryable,
            "task": self._place.described if self._place is not None else None,
        }

    # -- small parts

    def _move(self, **update: Any) -> None:
        self._state = self._state.model_copy(update=update)

    def _bind(self, key: object) -> None:
        if isinstance(key, str) and key != self._key:
            self._service.sessions.unbind(self._key, self)
            self._key = key
            self._service.sessions.bind(key, self)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise RuntimeError("this session was closed by the server; open a new one")


def _listed(tools: Sequence[TurnTool]) -> list[Tool]:
    return [Tool(**tool) for tool in [*described(tools), END_TURN]]


def _where(turn: Turn, rollout: Rollout) -> dict[str, Any]:
    """A turn's place in its task, and its tools: what our own client wants to know beyond OpenEnv."""
    tools = {"digest": tools_digest(rollout.offered), "names": [tool.name for tool in rollout.offered]}
    return {"id": turn.step_id, "number": turn.number, "of": turn.of, "tools": tools}


def _deadlines(keys: Mapping[str, Any]) -> Deadlines:
    """The deadlines a reset asks for.

    Raises:
        ValueError: One is no number of seconds.
    """
    asked = {"tool": keys.get("tool_timeout"), "reset": keys.get("reset_timeout")}
    for name, value in asked.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < float("inf")):
            raise ValueError(f"{name}_timeout={value!r} must be a number of seconds above 0")
    return Deadlines(**{name: float(value) for name, value in asked.items() if value is not None})


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

"""Triggers: when an agent's tool call comes to something, tools of the env are called in answer.

They run here, where all tool calls pass, and not in a gateway. A trigger fires once, or at every match if it repeats;
one whose actions failed may fire again. Calls of the triggers themselves are not watched, and access rules, which are
about agents, don't bind them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agent_env_core.envs.access import DEFAULT_ROLE, Action, ToolAccess
from agent_env_core.envs.matching import call_facts, condition_fault, fill, holds, look_up, path_fault, template_faults
from agent_env_core.envs.results import ToolResult
from agent_env_core.errors import describe

BARRIER_TIMEOUT = 30.0
"""Seconds that a call waits for the actions of a trigger whose barrier sets no time."""
ACTION_TIMEOUT = 60.0
MAX_KEPT = 2_000
"""Characters of an action's answer that a record keeps."""

CallTool = Callable[[str, Mapping[str, Any], str | None], Awaitable[ToolResult]]
"""Calls a tool of the env, whatever access rules say: name, arguments, role."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class When(_Part):
    """What a trigger waits for: a call of ``tool`` that didn't fail and meets every condition of ``where``."""

    type: Literal["action"]
    tool: str = Field(min_length=1)
    where: dict[str, dict[str, Any]] = Field(default_factory=dict)
    repeat: bool = False

    @field_validator("where")
    @classmethod
    def _conditions(cls, where: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for path, condition in where.items():
            if fault := path_fault(path) or condition_fault(condition):
                raise ValueError(f"{path}: {fault}")
        return where


class Barrier(_Part):
    """Where an agent waits for a trigger: its call is answered when the actions are done, or the time is up."""

    at: Literal["provoking_call"]
    timeout_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Act(_Part):
    """One thing that a trigger does: call a tool, or change who may call which."""

    type: Literal["tool", "permission"]
    tool: str = ""
    args: dict[str, Any] = Field(default_factory=dict)
    role_as: str | None = Field(default=None, alias="as")
    action: Action = "disable"
    role: str = ""
    tools: list[str] | Literal["*"] = Field(default_factory=list)

    @model_validator(mode="after")
    def _whole(self) -> Act:
        if self.type == "permission":
            if not self.role or "action" not in self.model_fields_set or "tools" not in self.model_fields_set:
                raise ValueError("a permission action has action, role and tools")
            return self
        if not self.tool:
            raise ValueError("a tool action names its tool")
        if fault := next(template_faults(self.args), ""):
            raise ValueError(f"args: {fault}")
        return self


class Trigger(_Part):
    """One trigger of a task."""

    id: str = Field(min_length=1)
    when: When
    barrier: Barrier | None = None
    actions: list[Act]


@dataclass(frozen=True)
class Firing:
    """That a trigger fired.

    Attributes:
        trigger_id: The trigger.
        env_id: The env it watches.
        tool: The tool whose call it answered.
        role: Who called that.
        detected_at: When the call came back.
        ended_at: When the trigger's actions were done.
        virtual_time: What the env's virtual clock said at ``detected_at``; None where it has none.
        actions: What it did: objects of ``type``, ``tool``, ``args``, ``ok`` and ``text``.
        error: Why its actions failed, or empty.
    """

    trigger_id: str
    env_id: str
    tool: str
    role: str
    detected_at: datetime
    ended_at: datetime
    virtual_time: datetime | None
    actions: tuple[Mapping[str, Any], ...]
    error: str = ""


@dataclass
class _Armed:
    """A trigger and where it stands."""

    trigger: Trigger
    state: Literal["armed", "firing", "fired"] = "armed"


@dataclass
class Triggers:
    """The triggers of one deployed env.

    Attributes:
        env_id: The env.
        access: Its access rules, which actions may change.
        call_tool: Calls its tools.
        on_firing: Told of each firing once its actions are done.
        virtual_now: What the env's virtual clock says; None where it has none.
        watched: The roles whose calls count; None before anything is registered.
    """

    env_id: str
    access: ToolAccess
    call_tool: CallTool
    on_firing: Callable[[Firing], None]
    virtual_now: Callable[[], Awaitable[datetime | None]]
    watched: frozenset[str] | None = None
    _armed: dict[str, _Armed] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # firings act one after another, as they were detected
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def register(self, triggers: Sequence[Trigger], roles: Sequence[str] | None, tools: Mapping[str, Any]) -> None:
        """Adds triggers to those there are.

        Args:
            triggers: The triggers.
            roles: Whose calls count; None leaves it as it is, and that is the default role at first.
            tools: What the env has, by name.

        Raises:
            ValueError: One can't be added; nothing was then.
        """
        watched = frozenset(roles) if roles is not None else self.watched or frozenset({DEFAULT_ROLE})
        if self.watched not in (None, watched):
            raise ValueError(f"watch_roles={sorted(watched)}: this env's triggers watch {sorted(self.watched or ())}")
        for trigger in triggers:
            known = self._armed.get(trigger.id)
            if known is not None and known.trigger != trigger:
                raise ValueError(f"a trigger {trigger.id!r} is registered already, with other content")
            for tool in _tools_of(trigger):
                if tool not in tools:
                    offered = ", ".join(sorted(tools)) or "none"
                    raise ValueError(f"the trigger {trigger.id!r} names a tool {tool!r}; the env has: {offered}")
        self.watched = watched
        for trigger in triggers:
            self._armed.setdefault(trigger.id, _Armed(trigger))

    async def remove(self, ids: Collection[str]) -> None:
        """Takes triggers away, whatever they have done so far, and ends what they do now."""
        for trigger_id in ids:
            self._armed.pop(trigger_id, None)
        firing = [task for task in self._running if task.get_name() in {_task_name(one) for one in ids}]
        for task in firing:
            task.cancel()
        await asyncio.gather(*firing, return_exceptions=True)
        if not self._armed:
            self.watched = None

    async def after_call(
        self, role: str | None, tool: str, arguments: Mapping[str, Any], result: ToolResult, *, at_most: float
    ) -> None:
        """Has an agent's call answered by the triggers that it meets, and waits where they have a barrier.

        Args:
            role: Whose call it was.
            tool: The tool.
            arguments: What it was given.
            result: What came of it.
            at_most: Seconds that all barriers together may take; what isn't done then goes on behind.
        """
        role = role or DEFAULT_ROLE
        if result.is_error or role not in (self.watched or ()):
            return
        candidates = [one for one in self._armed.values() if one.trigger.when.tool == tool and _may_fire(one)]
        if not candidates:
            return
        facts = call_facts(arguments, result.text)
        held: list[asyncio.Task[None]] = []
        longest = 0.0
        for armed in candidates:
            when, barrier = armed.trigger.when, armed.trigger.barrier
            if not all(holds(condition, look_up(facts, path)) for path, condition in when.where.items()):
                continue
            armed.state = "firing"
            task = asyncio.create_task(self._fire(armed, facts, tool, role), name=_task_name(armed.trigger.id))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            if barrier is not None:
                held.append(task)
                longest = max(longest, barrier.timeout_seconds or BARRIER_TIMEOUT)
        if held:
            await asyncio.wait(held, timeout=min(longest, at_most))

    async def close(self) -> None:
        """Ends what still fires."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _fire(self, armed: _Armed, facts: Mapping[str, Any], tool: str, role: str) -> None:
        trigger, detected_at = armed.trigger, datetime.now(UTC)
        virtual = await self.virtual_now()
        done: list[Mapping[str, Any]] = []
        error = ""
        async with self._turn:
            try:
                for act in trigger.actions:
                    done.append(await self._act(act, facts))
                    if not done[-1]["ok"]:
                        error = f"{act.tool}: {done[-1]['text']}"
                        break
            except Exception as exc:  # the record of a firing must not be lost, whatever went wrong
                error = describe(exc)
        armed.state = "armed" if error or trigger.when.repeat else "fired"
        ended_at = datetime.now(UTC)
        firing = Firing(trigger.id, self.env_id, tool, role, detected_at, ended_at, virtual, tuple(done), error)
        self.on_firing(firing)

    async def _act(self, act: Act, facts: Mapping[str, Any]) -> Mapping[str, Any]:
        if act.type == "permission":
            tools = ["*"] if act.tools == "*" else list(act.tools)
            self.access.change(act.action, act.role, tools)
            return {"type": act.type, "action": act.action, "role": act.role, "tools": tools, "ok": True, "text": ""}
        arguments = fill(act.args, facts)
        async with asyncio.timeout(ACTION_TIMEOUT):
            result = await self.call_tool(act.tool, arguments, act.role_as)
        kept = {"type": act.type, "tool": act.tool, "args": arguments}
        return {**kept, "ok": not result.is_error, "text": result.text[:MAX_KEPT]}


def _task_name(trigger_id: str) -> str:
    return f"trigger {trigger_id}"


def _may_fire(armed: _Armed) -> bool:
    return armed.state == "armed" or (armed.state == "firing" and armed.trigger.when.repeat)


def _tools_of(trigger: Trigger) -> Iterator[str]:
    yield trigger.when.tool
    yield from (act.tool for act in trigger.actions if act.type == "tool")

"""Triggers over scripted tools: when they fire, what they do, what agents wait for, what is kept of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from agent_env_core.envs import triggers as module
from agent_env_core.envs.access import ToolAccess
from agent_env_core.envs.results import ToolResult, failed
from agent_env_core.envs.triggers import Firing, Trigger, Triggers

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOOLS = dict.fromkeys(("advance", "notice"))


def result(**data: Any) -> ToolResult:
    return ToolResult(({"type": "text", "text": json.dumps(data)},))


def trigger(**changes: Any) -> Trigger:
    usual = {
        "id": "t",
        "when": {"type": "action", "tool": "advance", "where": {"result.watch": {"equals": 2}}},
        "barrier": {"at": "provoking_call"},
        "actions": [{"type": "tool", "tool": "notice", "args": {"text": "${args.why}"}}],
    }
    return Trigger.model_validate({**usual, **changes})


class World:
    """The triggers of an env, its tools, and what was called and recorded."""

    def __init__(self) -> None:
        self.called: list[tuple[str, Mapping[str, Any], str | None]] = []
        self.fired: list[Firing] = []
        self.answers: list[ToolResult | Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.access = ToolAccess()
        self.triggers = Triggers("E", self.access, self.call, self.fired.append, self.now)

    async def now(self) -> datetime | None:
        return NOON

    async def call(self, name: str, arguments: Mapping[str, Any], role: str | None) -> ToolResult:
        self.called.append((name, arguments, role))
        await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else result()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def register(self, *triggers: Trigger, roles: list[str] | None = None) -> None:
        self.triggers.register(triggers, roles, TOOLS)

    async def advance(self, watch: int, role: str | None = None, *, at_most: float = 10.0, **args: Any) -> None:
        await self.triggers.after_call(role, "advance", {"why": "x", **args}, result(watch=watch), at_most=at_most)


@pytest.fixture
async def world() -> Any:
    made = World()
    yield made
    await made.triggers.close()


async def test_the_call_is_answered_after_the_actions(world: World):
    world.register(trigger())
    await world.advance(1)
    assert world.called == []
    await world.advance(2)
    assert world.called == [("notice", {"text": "x"}, None)]
    (fired,) = world.fired
    assert (fired.trigger_id, fired.env_id, fired.tool, fired.role) == ("t", "E", "advance", "default")
    assert (fired.virtual_time, fired.error) == (NOON, "")
    assert fired.actions == ({"type": "tool", "tool": "notice", "args": {"text": "x"}, "ok": True, "text": "{}"},)
    assert fired.detected_at <= fired.ended_at


async def test_it_fires_once_unless_it_repeats(world: World):
    often = {"type": "action", "tool": "advance", "repeat": True}
    world.register(trigger(), trigger(id="often", when=often))
    for _ in range(3):
        await world.advance(2)
    assert [fired.trigger_id for fired in world.fired] == ["t", "often", "often", "often"]


async def test_only_calls_of_watched_roles_count(world: World):
    world.register(trigger(), roles=["planner"])
    await world.advance(2)
    await world.advance(2, "pilot")
    assert world.fired == []
    await world.advance(2, "planner")
    assert [fired.role for fired in world.fired] == ["planner"]


async def test_a_call_that_failed_is_none(world: World):
    world.register(trigger(when={"type": "action", "tool": "advance"}))
    await world.triggers.after_call(None, "advance", {}, failed("tool", "no"), at_most=1.0)
    assert world.fired == []


async def test_a_trigger_whose_action_failed_may_fire_again(world: World):
    two = [{"type": "tool", "tool": "notice", "args": {"n": n}} for n in (1, 2)]
    world.register(trigger(actions=two))
    world.answers = [failed("tool", "the harbour is closed")]
    await world.advance(2)
    assert len(world.called) == 1  # what comes after a failed action isn't done
    assert world.fired[0].error == "notice: the harbour is closed"
    world.answers = [ConnectionError("gone")]
    await world.advance(2)
    assert world.fired[1].error == "ConnectionError: gone"
    await world.advance(2)
    assert world.fired[2].error == ""
    await world.advance(2)
    assert len(world.fired) == 3


async def test_a_placeholder_that_leads_nowhere_fails_the_firing(world: World):
    world.register(trigger(actions=[{"type": "tool", "tool": "notice", "args": {"text": "${result.gone}"}}]))
    await world.advance(2)
    assert world.called == []
    assert "${result.gone} leads to nothing" in world.fired[0].error


async def test_without_a_barrier_nobody_waits(world: World):
    world.register(trigger(barrier=None))
    world.gate.clear()
    await world.advance(2)
    assert world.fired == []
    world.gate.set()
    await asyncio.gather(*world.triggers._running)
    assert len(world.fired) == 1


@pytest.mark.parametrize(("barrier", "at_most"), [(0.02, 10.0), (None, 0.02)])
async def test_a_barrier_ends_by_its_time_and_the_actions_go_on(world: World, barrier: float | None, at_most: float):
    world.register(trigger(barrier={"at": "provoking_call", "timeout_seconds": barrier}))
    world.gate.clear()
    await world.advance(2, at_most=at_most)
    assert world.fired == []
    world.gate.set()
    await asyncio.gather(*world.triggers._running)
    assert len(world.fired) == 1


async def test_firings_act_one_after_another(world: World):
    two = [{"type": "tool", "tool": "notice", "args": {"n": n}} for n in (1, 2)]
    later = [{"type": "tool", "tool": "notice", "args": {"n": 3}}]
    world.register(trigger(actions=two), trigger(id="u", actions=later))
    await world.advance(2)
    assert [arguments["n"] for _, arguments, _ in world.called] == [1, 2, 3]


async def test_an_action_may_have_a_role_and_may_change_who_sees_what(world: World):
    acts = [
        {"type": "tool", "tool": "notice", "as": "pilot"},
        {"type": "permission", "action": "disable", "role": "default", "tools": ["advance"]},
    ]
    world.register(trigger(actions=acts))
    await world.advance(2)
    assert world.called == [("notice", {}, "pilot")]
    assert not world.access.allows(None, "advance")


async def test_an_action_that_hangs_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ACTION_TIMEOUT", 0.01)
    world.register(trigger())
    world.gate.clear()
    await world.advance(2)
    assert "TimeoutError" in world.fired[0].error


async def test_the_end_of_a_run_ends_what_still_fires(world: World):
    world.register(trigger(barrier=None))
    world.gate.clear()
    await world.advance(2)
    await asyncio.sleep(0)
    await world.triggers.close()
    assert (world.fired, world.triggers._running) == ([], set())


async def test_what_can_not_be_registered(world: World):
    world.register(trigger())
    world.register(trigger())  # the same again is nothing new
    with pytest.raises(ValueError, match="a trigger 't' is registered already, with other content"):
        world.register(trigger(actions=[]))
    with pytest.raises(ValueError, match=r"watch_roles=\['planner'\]: this env's triggers watch \['default'\]"):
        world.register(trigger(id="u"), roles=["planner"])
    with pytest.raises(ValueError, match="the trigger 'u' names a tool 'gone'; the env has: advance, notice"):
        world.register(trigger(id="u", when={"type": "action", "tool": "gone"}))
    with pytest.raises(ValueError, match="names a tool 'notices'"):
        world.register(trigger(id="u", actions=[{"type": "tool", "tool": "notices"}]))
    await world.advance(2)
    assert len(world.fired) == 1

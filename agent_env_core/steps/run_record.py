"""What verifiers and judges are told of a run: the conversation of a prompt, and what triggers did meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_env_core.steps.context import Exchange, PromptResponse, RunContext
from agent_env_core.verifiers.record import Firing, write_message, write_run

if TYPE_CHECKING:
    from agent_env_core.envs.triggers import Firing as EnvFiring


def run_record(run: RunContext, response: PromptResponse | None) -> dict[str, Any]:
    """The record of a prompt, as JSON; without one, only what triggers did.

    What they did after the next prompt was sent belongs to that one, and isn't in it.
    """
    following = _following(run, response)
    firings = [_fired(firing) for firing in run.firings if following is None or firing.ended_at < following]
    turns = [] if response is None else [_written(exchange, response.agent_name) for exchange in response.exchanges]
    return write_run(turns, firings=firings, envs=_watched(run))


def _following(run: RunContext, response: PromptResponse | None) -> datetime | None:
    """When the prompt after ``response`` was sent."""
    if response is None:
        return None
    return min((other.sent_at for other in run.responses if other.sent_at > response.sent_at), default=None)


def _written(exchange: Exchange, agent: str) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    asked, answered = exchange.clocks
    texts = [part["text"] for part in exchange.parts if part.get("kind") == "text"]
    message = write_message(
        "\n".join(texts) if exchange.parts else exchange.prompt,
        exchange.sent_at,
        exchange.author,
        parts=exchange.parts,
        user_sim=exchange.user_sim,
        env_clock=asked,
    )
    if exchange.response is None or exchange.replied_at is None:
        return message, None
    return message, write_message(exchange.response, exchange.replied_at, agent, env_clock=answered)


def _fired(firing: EnvFiring) -> Firing:
    """A firing as the format tells of it: at the time when its actions were done."""
    return Firing(
        firing.trigger_id,
        f"env:{firing.env_id}",
        0,
        firing.ended_at,
        firing.virtual_time,
        ok=not firing.error,
        provoked_by={"tool": firing.tool, "role": firing.role, "at": firing.detected_at.isoformat()},
    )


def _watched(run: RunContext) -> dict[str, str]:
    """The ids of the envs that have triggers, by their names and ids."""
    ids = {env_id for env_id, env in run.envs.items() if env.triggers is not None}
    ids |= {firing.env_id for firing in run.firings}
    names = {run.envs[env_id].env.name: env_id for env_id in ids if env_id in run.envs}
    return {**names, **{env_id: env_id for env_id in ids}}


def clocks(run: RunContext) -> Mapping[str, datetime | None] | None:
    """Each env's virtual time now; None where no env keeps one."""
    times = {env_id: env.clock.now() if env.clock is not None else None for env_id, env in run.envs.items()}
    return times if any(times.values()) else None

"""``register_env_triggers``: has tools of an env called when an agent's call comes to something."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any, ClassVar

from pydantic import Field, ValidationError, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.envs.deployment import Deployment
from agent_env_core.envs.direct import DirectTools
from agent_env_core.envs.triggers import Trigger, Triggers
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

NOTES = "env_trigger_registrations"
"""The notes that tell which step registered which triggers."""


class RegisterEnvTriggers(TaskStep):
    """Registers triggers on an env, beside those it has; see :class:`~agent_env_core.envs.triggers.Triggers`.

    Attributes:
        env_id: The env.
        triggers: The triggers as the format has them.
        watch_roles: Whose calls count; None is the default role, or whom earlier triggers of the env watch.
        executor_agent_name: Part of the format: an agent that acts on instructions; can't be played.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    env_id: str = Field(min_length=1)
    triggers: list[dict[str, Any]]
    watch_roles: list[str] | None = None
    executor_agent_name: str | None = None
    executor_hours: Any = None
    await_fired: Any = None

    @model_validator(mode="after")
    def _readable(self) -> RegisterEnvTriggers:
        ids: set[object] = set()
        for at, trigger in enumerate(self.triggers):
            if not any(_beyond(trigger)):
                _read(at, trigger)
            if trigger.get("id") in ids:
                raise ValueError(f"triggers.{at}: the id {trigger['id']!r} is used twice")
            ids.add(trigger.get("id"))
        return self

    def refusals(self, played: Collection[str]) -> list[str]:
        """Adds what needs an agent of its own, or is watched for in other ways than by calls."""
        lines = super().refusals(played) + self.unsupported(
            executor_agent_name=None, executor_hours=None, await_fired=None
        )
        for at, trigger in enumerate(self.triggers):
            lines += [f"triggers.{at}.{what} isn't supported" for what in _beyond(trigger)]
        return lines

    async def run(self, run: RunContext) -> None:
        """Registers them, all or none."""
        env = run.env(self.env_id)
        tools = await DirectTools.open(env)
        run.at_end.append(tools.close)
        if env.triggers is None:
            env.triggers = Triggers(self.env_id, env.access, tools.call, run.firings.append, _clock_of(env))
            run.at_end.append(env.triggers.close)
        triggers = [_read(at, trigger) for at, trigger in enumerate(self.triggers)]
        try:
            env.triggers.register(triggers, self.watch_roles, tools.routes)
        except ValueError as exc:
            raise EpisodeError("setup", f"triggers: {exc}") from exc
        added = [trigger.id for trigger in triggers]
        run.note(NOTES, {"step_id": self.id, "env_id": self.env_id, "added": added})

    async def undo(self, run: RunContext) -> None:
        """Takes them away, and with them the record of how they fired."""
        added = {trigger["id"] for trigger in self.triggers}
        env = run.envs.get(self.env_id)
        if env is not None and env.triggers is not None:
            await env.triggers.remove(added)
        kept = [one for one in run.firings if one.env_id != self.env_id or one.trigger_id not in added]
        run.firings[:] = kept
        run.forget(NOTES, self.id)


def _clock_of(env: Deployment) -> Callable[[], Any]:
    async def now() -> datetime | None:
        return None if env.clock is None else await env.clock.current()

    return now


def _beyond(trigger: dict[str, Any]) -> Iterator[str]:
    """What of a trigger belongs to the format and can't be done here, as ``field=value``."""
    when = trigger.get("when")
    if isinstance(when, dict) and when.get("type") in ("state", "time"):
        yield f"when.type={when['type']!r}"
    actions = trigger.get("actions")
    for at, action in enumerate(actions if isinstance(actions, list) else ()):
        if isinstance(action, dict) and action.get("type") == "nl":
            yield f"actions.{at}.type='nl'"
        if isinstance(action, dict) and action.get("verify") is not None:
            yield f"actions.{at}.verify={action['verify']!r}"


def _read(at: int, trigger: dict[str, Any]) -> Trigger:
    """A trigger; raises ValueError that says where it is wrong."""
    try:
        return Trigger.model_validate(trigger)
    except ValidationError as exc:
        error = exc.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in ("triggers", at, *error["loc"]))
        message = str(error["msg"]).removeprefix("Value error, ")
        raise ValueError(f"{place}: {message}, not {error['input']!r}"[:500]) from exc


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``register_env_triggers``."""
    register("register_env_triggers", RegisterEnvTriggers)

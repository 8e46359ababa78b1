"""``apply_server_config``: calls extensions of an env's servers, e.g. to load a task into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.envs.card import Card
from agent_env_core.envs.deployment import Deployment
from agent_env_core.errors import EpisodeError
from agent_env_core.hookspecs import hookimpl
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle

EVERY = "*"


class Directive(BaseModel):
    """One extension call.

    Attributes:
        service: The server's environment name, or ``*`` for one call to each server of the env.
        environment: Another word for ``service``.
        uri: The extension.
        args: Sent as the JSON body, or as the query of a GET.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    service: str | None = Field(default=None, min_length=1)
    environment: str | None = Field(default=None, min_length=1)
    uri: str = Field(min_length=1)
    args: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_server(self) -> Directive:
        if (self.service is None) == (self.environment is None):
            raise ValueError('name the server once, by service or by environment ("*" is every server of the env)')
        return self

    @property
    def server(self) -> str:
        """Whom it addresses."""
        return self.service or self.environment or EVERY


class ApplyServerConfig(TaskStep):
    """Calls the first method of each directive's extension, in order.

    Attributes:
        env_id: The env.
        directives: The calls.
        timeout_seconds: Seconds each call may take.
        tolerate_unadvertised: Whether a server or an extension that the card doesn't show is skipped.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_id", "env"),)

    env_id: str = Field(min_length=1)
    directives: list[Directive] = Field(min_length=1)
    timeout_seconds: float = Field(default=30, gt=0, allow_inf_nan=False)
    tolerate_unadvertised: bool = False

    def misfits(self, bundle: Bundle) -> list[str]:
        """Servers that the env hasn't, where that is no matter of its card alone."""
        env = bundle.envs.get(self.env_id)
        if env is None or self.tolerate_unadvertised or not self.fail_task_on_error:
            return []
        names = [server.environment_name for server in env.servers]
        asked = [directive.server for directive in self.directives]
        return [
            f"directives.{at}: the env {env.name!r} has no server {name!r}; it has: {', '.join(names)}"
            for at, name in enumerate(asked)
            if name not in (EVERY, *names)
        ]

    async def run(self, run: RunContext) -> None:
        """Makes the calls; the first one that fails ends the step."""
        env = run.env(self.env_id)
        for directive in self.directives:
            for server, card in self._servers(run, env, directive):
                await self._call(run, server, card, directive)

    def _servers(self, run: RunContext, env: Deployment, directive: Directive) -> list[tuple[Deployment, Card]]:
        """The servers a directive addresses: where each one is reached, and its card."""
        every = [(server, card) for server in env.servers for card in server.card.servers]
        found = [pair for pair in every if directive.server in (EVERY, pair[1].name)]
        if not found:
            names = ", ".join(card.name for _, card in every)
            self._absent(
                run, directive, f"the env {env.env.name!r} has no server {directive.server!r}; it has: {names}"
            )
        return found

    async def _call(self, run: RunContext, server: Deployment, card: Card, directive: Directive) -> None:
        method = card.first_method(directive.uri)
        if method is None:
            offered = ", ".join(sorted(card.extensions)) or "none"
            why = f"the server {card.name!r} advertises no extension {directive.uri!r}; it advertises: {offered}"
            self._absent(run, directive, why)
            return
        answer = await server.call_extension(method, directive.args, timeout=self.timeout_seconds)
        change = {"step_id": self.id, "service": card.name, "uri": directive.uri, "args": directive.args}
        run.note("server_config_changes", {**change, "result": answer})

    def _absent(self, run: RunContext, directive: Directive, why: str) -> None:
        if not self.tolerate_unadvertised:
            raise EpisodeError("setup", why)
        run.note("server_config_skipped", {"step_id": self.id, "uri": directive.uri, "reason": why})


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``apply_server_config``."""
    register("apply_server_config", ApplyServerConfig)

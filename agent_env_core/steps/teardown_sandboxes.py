"""``teardown_sandboxes``: ends sandboxes of a run before the run ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import ClassVar

from pydantic import Field, model_validator

from agent_env_core.bundle.references import Reference
from agent_env_core.errors import Phase, describe
from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.contract import Sandbox
from agent_env_core.steps.base import TaskStep
from agent_env_core.steps.context import RunContext

log = logging.getLogger(__name__)


class TeardownSandboxes(TaskStep):
    """Ends sandboxes as far as it can; what isn't there, or won't end, is noted. The end of the run ends all anyway.

    What was ended is no longer deployed for later steps, and may be deployed again.

    Attributes:
        agent_names: Agents, whose sandboxes end.
        env_ids: Envs.
        sandbox_names: Sandboxes, with the containers in them.
        fail_task_on_error: Always False: a sandbox that doesn't end is no reason to throw a run away.
    """

    references: ClassVar[tuple[Reference, ...]] = (Reference("env_ids", "env", many=True),)
    phase: ClassVar[Phase] = "teardown"

    agent_names: list[str] = Field(default_factory=list)
    env_ids: list[str] = Field(default_factory=list)
    sandbox_names: list[str] = Field(default_factory=list)
    fail_task_on_error: bool = False

    @model_validator(mode="after")
    def _names_something(self) -> TeardownSandboxes:
        if not (self.agent_names or self.env_ids or self.sandbox_names):
            raise ValueError("name what to end: agent_names, env_ids or sandbox_names")
        if self.fail_task_on_error:
            raise ValueError("fail_task_on_error can't be true here: ending sandboxes never fails a task")
        return self

    async def run(self, run: RunContext) -> None:
        """Ends them, one after another."""
        for name, sandbox in list(self._named(run)):
            if sandbox is None:
                run.note("teardown_skipped", {"step_id": self.id, "name": name, "reason": "it isn't deployed"})
                continue
            try:
                await run.destroy(sandbox)
            except Exception as exc:  # best effort, whatever the provider says
                log.warning("step %r can't end %s: %s", self.id, name, describe(exc))
                run.note("teardown_skipped", {"step_id": self.id, "name": name, "reason": describe(exc)})

    def _named(self, run: RunContext) -> Iterator[tuple[str, Sandbox | None]]:
        """Each thing that is named and its sandbox; from then on the run knows it no longer."""
        for name in self.agent_names:
            agent = run.agents.pop(name, None)
            if agent is None:
                yield f"the agent {name!r}", None
            elif agent.sandbox is not None:
                run.sandboxes.pop(agent.sandbox.name, None)
                yield f"the agent {name!r}", agent.sandbox.sandbox
        for env_id in self.env_ids:
            env = run.envs.pop(env_id, None)
            found = [server.sandbox for server in env.servers] if env else [None]
            yield from ((f"the env {env_id.rpartition('/')[2]!r}", sandbox) for sandbox in found)
        for name in self.sandbox_names:
            inside = [key for key in run.sandboxes if key == name or key.startswith(f"{name}/")]
            for key in inside:
                yield f"the sandbox {key!r}", run.sandboxes.pop(key).sandbox
            if not inside and run.places.machines.pop(name, None) is None:
                yield f"the sandbox {name!r}", None


@hookimpl
def agent_env_task_steps(register: Callable[[str, type[TaskStep]], None]) -> None:
    """Registers ``teardown_sandboxes``."""
    register("teardown_sandboxes", TeardownSandboxes)

"""The product: a server that ``AgentEnv.local`` starts, and environments driven as a trainer drives them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from bench.calls import PORT, Bundle, Script

if TYPE_CHECKING:
    from agent_env_trl.environment import Environment

    from agent_env_core.bundle import Task
    from agent_env_core.sandbox.contract import SandboxProvider

QUIET_SECONDS = 120.0
GENERATES_SECONDS = 1.0
"""What a model takes at least between two batches: here, once the envs answer, for the server to see that they do."""


class Unscored(Exception):
    """An episode ended without a score: what was measured is no episode."""


@dataclass(frozen=True)
class Prepared:
    """What is measured on one provider.

    Attributes:
        bundle: The bundle.
        provider: The provider's name.
        task_id: The task that is played.
        index: Its place in the split ``all``.
        image: The provider's reference to the env's image.
        script: What the task asks of its env.
    """

    bundle: Bundle
    provider: str
    task_id: str
    index: int
    image: str
    script: Script


def prepare(bundle: Bundle, provider: str) -> Prepared:
    """Reads a bundle's task and prepares its image.

    Raises:
        AgentEnvError: The bundle can't be read, or the provider can't be used here.
        ValueError: The task is not of the kind that this benchmark can also play by hand.
    """
    from agent_env_core.bundle import load_bundle
    from agent_env_core.plugins import plugins
    from agent_env_core.sandbox.contract import Image
    from agent_env_core.steps.base import declaration

    loaded = load_bundle(bundle.path, declaration)
    index = next(i for i, task in enumerate(loaded.tasks) if bundle.task in (None, task.path.stem))
    task = loaded.tasks[index]
    script = read_script(task, bundle)

    async def image() -> str:
        sandboxes = plugins().sandbox_provider(provider)({})
        try:
            return await sandboxes.prepare(Image(context=script.context, dockerfile=script.dockerfile))
        finally:
            await sandboxes.aclose()

    return Prepared(bundle, provider, task.id, index, asyncio.run(image()), script)


def read_script(task: Task, bundle: Bundle) -> Script:
    """What the task asks of its env, from its steps as they stand in the file.

    Raises:
        ValueError: It has others than the floor plays.
    """
    from agent_env_core.steps.modify_env_tool_access import OWN_EXTENSION

    by_type: dict[str, list[Mapping[str, Any]]] = {}
    for step in task.steps:
        by_type.setdefault(str(step["type"]), []).append(step)
    known = {"deploy_env", "apply_server_config", "modify_env_tool_access", "deploy_agent", "prompt_agent"}
    strange = set(by_type) - known - {"env_outcome_verifier"}
    if strange or any(len(by_type.get(once, ())) != 1 for once in ("deploy_env", "deploy_agent", "prompt_agent")):
        raise ValueError(f"the task {task.name!r} can't be played by hand: it needs one env, agent and prompt, and no"
                         f" steps but of {', '.join(sorted(known))}")  # fmt: skip
    [deployed], [agent] = by_type["deploy_env"], by_type["deploy_agent"]
    env = task.bundle.envs[deployed["env_id"]]
    image = env.image
    if image is None or image.context is None:
        raise ValueError(f"the env {env.name!r} has no Dockerfile")
    directives = [each for step in by_type.get("apply_server_config", ()) for each in step["directives"]]
    access = [
        (OWN_EXTENSION.format(action=step["action"]), {"role": step["role"], "tools": step["tools"]})
        for step in by_type.get("modify_env_tool_access", ())
    ]
    return Script(
        context=image.context,
        dockerfile=image.dockerfile,
        server=env.environment_name,
        private_database=env.env_provider_type == "server",
        directives=tuple((directive["uri"], directive.get("args", {})) for directive in directives),
        access=tuple(access),
        role=agent.get("role"),
        tool=bundle.tool,
        arguments=bundle.arguments,
    )


class Product:
    """A served bundle. Use it as a context manager.

    Args:
        prepared: What to serve.
        sessions: Sessions to allow at once.
        warm: Deployments that the server makes ahead.

    Attributes:
        start_seconds: What ``AgentEnv.local`` took.
        tools_seconds: What the first access to ``factory`` took: one deploy of each toolset.
    """

    def __init__(self, prepared: Prepared, sessions: int, *, warm: int = 0) -> None:
        from agent_env.training.trl import AgentEnv
        from agent_env_trl.local import LocalServer

        self._prepared = prepared
        began = time.perf_counter()
        # the two halves of AgentEnv.local, apart, so that the server's process is known
        self._server = LocalServer(
            prepared.bundle.path, sandbox=prepared.provider, max_concurrent_envs=sessions, warm=warm
        )
        try:
            self._env = AgentEnv(self._server.url, token=self._server.token)
            self.start_seconds = time.perf_counter() - began
            began = time.perf_counter()
            self._classes = self._class_of(self._env.factory), self._class_of(self._batch_factory())
            self.tools_seconds = time.perf_counter() - began
            self._row = {"split": "all", "index": prepared.index, "task_id": prepared.task_id}
            self._provider = self._own_provider()
        except BaseException:
            self._server.close()
            raise

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *_: object) -> None:
        self._env.close()
        self._server.close()
        asyncio.run(self._provider.aclose())

    def _batch_factory(self) -> Any:
        """What ``GRPOTrainer`` is given: it's known to ask for rewards once its whole batch is played."""
        from agent_env_core.plugins import plugins

        return plugins().trainer_adapter("grpo").arguments(self._env)["environment_factory"]

    def _class_of(self, factory: Any) -> type[Environment]:
        """The class that plays the task, where there are several toolsets."""
        if not isinstance(factory, dict):
            return factory  # type: ignore[no-any-return]
        row = next(row for row in self._env.dataset if row["task_id"] == self._prepared.task_id)
        return factory[row["environment"]]  # type: ignore[no-any-return]

    def _own_provider(self) -> SandboxProvider:
        from agent_env_core.plugins import plugins

        return plugins().sandbox_provider(self._prepared.provider)({})

    # -- environments

    def environments(self, count: int, *, batch: bool = False) -> list[Environment]:
        """New environments; the caller ends them with :meth:`close_sessions`.

        Args:
            count: How many.
            batch: Of the class that ``GRPOTrainer`` is given.
        """
        return [self._classes[batch]() for _ in range(count)]

    @staticmethod
    def close_sessions(environments: list[Environment]) -> None:
        """Ends sessions, so that the server has room for others."""
        for environment in environments:
            environment._session.close()

    def reset(self, environment: Environment) -> None:
        """Starts an episode."""
        environment.reset(**self._row)

    def reset_and_wait(self, environment: Environment) -> None:
        """Starts an episode and waits until it's deployed, as a reset did that holds its caller."""
        self.reset(environment)
        environment._session.turn()

    def call(self, environment: Environment) -> None:
        """Calls the task's tool."""
        script = self._prepared.script
        getattr(environment, script.tool)(**script.arguments)

    @property
    def probed(self) -> tuple[str, Mapping[str, Any]]:
        """The tool that is called by the hundred, and its arguments."""
        return self._prepared.bundle.probe

    def probe(self, environment: Environment) -> None:
        """Calls that tool; a refusal is an answer too."""
        from agent_env_trl.environment import ToolFailure

        tool, arguments = self.probed
        try:
            getattr(environment, tool)(**arguments)
        except ToolFailure:
            environment._session.turn()  # raises where it was no refusal, but the end of the episode

    @staticmethod
    def score(environment: Environment) -> None:
        """Ends the episode and reads its reward.

        Raises:
            Unscored: There is none.
        """
        if environment.get_reward() is None:
            raise Unscored("an episode ended without a reward; the log above has the reason")

    def play(self, environment: Environment) -> float:
        """Plays one episode.

        Returns:
            Seconds from the reset to the first tool's answer.

        Raises:
            Unscored: It failed, or has no score.
        """
        from agent_env_trl.environment import ToolFailure

        began = time.perf_counter()
        self.reset(environment)
        try:
            self.call(environment)
        except ToolFailure as exc:
            raise Unscored(f"a tool call failed: {exc}") from exc
        answered = time.perf_counter() - began
        self.score(environment)
        return answered

    # -- what the server has

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the server's process so far."""
        import psutil

        used = psutil.Process(self._server.pid).cpu_times()
        return float(used.user + used.system)

    def address(self) -> str:
        """The address of an env that an episode has deployed."""

        async def find() -> str:
            sandbox = await self._provider.attach((await self._sandboxes())[0])
            return (await sandbox.endpoint(PORT)).url

        return asyncio.run(find())

    def wait_until_quiet(self) -> None:
        """Waits until nothing of any episode is left.

        Raises:
            TimeoutError: Something stays.
        """

        async def wait() -> None:
            async with asyncio.timeout(QUIET_SECONDS):
                while await self._sandboxes():  # noqa: ASYNC110 - another process ends them
                    await asyncio.sleep(0.02)

        asyncio.run(wait())

    def wait_until_warm(self, count: int) -> None:
        """Waits until so many deployments, and no others, stand ready, and then as long as a model generates at least.

        Raises:
            TimeoutError: They don't get ready.
        """

        async def ready(client: httpx.AsyncClient, sandbox_id: str) -> bool:
            from agent_env_core.envs.card import CARD_PATH
            from agent_env_core.errors import SandboxError

            try:
                sandbox = await self._provider.attach(sandbox_id)
                endpoint = await sandbox.endpoint(PORT)
                return (await client.get(endpoint.url + CARD_PATH, headers=endpoint.headers)).is_success
            except (SandboxError, httpx.HTTPError):
                return False

        async def wait() -> None:
            async with asyncio.timeout(QUIET_SECONDS), httpx.AsyncClient(timeout=5, trust_env=False) as client:
                while True:
                    found = await self._sandboxes()
                    if len(found) == count and all([await ready(client, sandbox_id) for sandbox_id in found]):
                        break
                    await asyncio.sleep(0.05)
            await asyncio.sleep(GENERATES_SECONDS)

        asyncio.run(wait())

    async def _sandboxes(self) -> list[str]:
        """The server's sandboxes, as the provider lists them."""
        from agent_env_core.sandbox.leases import OWNER_LABEL, Owner

        found = []
        async for info in self._provider.list({}):
            owner = Owner.parse(info.labels.get(OWNER_LABEL, ""))
            if owner is not None and owner.pid == self._server.pid:
                found.append(info.id)
        return found

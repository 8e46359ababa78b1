"""What a server keeps for all its episodes: a sandbox host, prepared images, warm verifiers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from agent_env_core.envs.deployer import Deployer
from agent_env_core.envs.deployment import sandbox_spec
from agent_env_core.envs.images import PreparedImage
from agent_env_core.errors import BundleError, ConfigError, EpisodeError, EpisodeRefused, Problem, Unsupported, describe
from agent_env_core.models import ModelSettings
from agent_env_core.play.refusals import by_reason, few
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.sandbox.choose import start_host
from agent_env_core.sandbox.contract import Image, refuse_unsupported
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.verifiers.pool import VerifierPool

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle
    from agent_env_core.play.episode import Episode

log = logging.getLogger(__name__)

BUILDS_AT_ONCE = 2
SAY_AGAIN = 10.0
"""Seconds between two lines of progress on one image."""


class Runner:
    """Everything episodes of one bundle need, on one event loop.

    Use it as an async context manager, or call :meth:`start` and :meth:`aclose`.

    Args:
        bundle: What is played.
        sandbox: The name of a sandbox provider, ``docker`` by default, or several with commas, of which the first that
            can be used here is; or a started host, which is then shared and left open.
        specs: Which of the bundle's tasks are played, and how; by default all that can be.
        warm: How many deployments to make ahead; see :mod:`agent_env_core.envs.warm`.
        verifier_timeout: Seconds one verifier may take.
        models: The models that judge and stand in for users; by default those that the environment names.
        on_progress: Told what :meth:`start` is doing, in lines for a person.

    Attributes:
        bundle: What is played.
        specs: What can be played, by task id, in the bundle's order; empty before :meth:`start`.
        left_out: Why other tasks can't, by task id.
        host: Makes sandboxes.
        verifiers: Runs verifiers.
        deployer: Deploys envs.
        models: The models that judge and stand in for users.
    """

    host: SandboxHost
    verifiers: VerifierPool
    deployer: Deployer

    def __init__(
        self,
        bundle: Bundle,
        *,
        sandbox: str | SandboxHost | None = None,
        specs: Iterable[EpisodeSpec] | None = None,
        warm: int = 0,
        verifier_timeout: float = 300.0,
        models: ModelSettings | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self.bundle = bundle
        self.specs: dict[str, EpisodeSpec] = {}
        self.left_out: dict[str, str] = {}
        self._sandbox = sandbox
        self._warm = warm
        self._given = None if specs is None else tuple(specs)
        self._verifier_timeout = verifier_timeout
        self.models = models or ModelSettings.from_env()
        self._say = on_progress or (lambda line: None)
        self._images: dict[Image, str] = {}
        self._episodes: set[Episode] = set()
        self._resources = AsyncExitStack()
        self._closed = False

    async def __aenter__(self) -> Runner:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # -- life

    async def start(self) -> None:
        """Checks the tasks, opens the host, prepares every image the tasks need and warms the verifiers.

        A task that can't be played, or whose env can't be prepared, is left out with its reason; the others are served.

        Raises:
            BundleError: No task can be played.
            PluginError: There is no such sandbox provider.
            ConfigError: The provider can't be used here.
            EpisodeError: Verifiers can't be run here.
        """
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise

    async def _start(self) -> None:
        if self._given is None:
            self._read_tasks()
        else:
            self.specs = {spec.task.id: spec for spec in self._given}
        self._check_models()
        self._refuse_none()
        await self._open()
        self._check_capabilities()
        await self._prepare()
        self._refuse_none()
        self._tell_left_out()

    def _read_tasks(self) -> None:
        for task in self.bundle.tasks:
            try:
                self.specs[task.id] = EpisodeSpec.from_task(task)
            except EpisodeRefused as exc:
                self.left_out[task.id] = "; ".join(str(problem) for problem in exc.problems)

    async def _open(self) -> None:
        if isinstance(self._sandbox, SandboxHost):
            self.host = self._sandbox
        else:
            self.host = await start_host(self._sandbox, on_progress=self._say)
            self._resources.push_async_callback(self.host.aclose)
        self.deployer = Deployer(self.host, warm=self._warm)
        self._resources.push_async_callback(self.deployer.aclose)
        self.verifiers = VerifierPool(timeout=self._verifier_timeout)
        self._resources.push_async_callback(self.verifiers.aclose)

    async def aclose(self) -> None:
        """Abandons what is still played, waits until nothing is left of any episode, and lets go. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(episode.abandon("the server is closing") for episode in self._episodes))
        await self._resources.aclose()

    # -- episodes

    @property
    def episodes(self) -> frozenset[Episode]:
        """Those that are not finished, teardown included."""
        return frozenset(self._episodes)

    def track(self, episode: Episode) -> None:
        """For episodes: one more is under way.

        Raises:
            EpisodeError: The runner isn't started, or is closing.
        """
        if self._closed:
            raise EpisodeError("queue", "the server is closing and starts no more episodes")
        self._episodes.add(episode)

    def forget(self, episode: Episode) -> None:
        """For episodes: nothing is left of one."""
        self._episodes.discard(episode)

    # -- preparing

    async def image(self, image: Image) -> str:
        """The provider's reference to an image that a step's sandbox starts from, prepared at the first call."""
        if image not in self._images:
            self._images[image] = await self.host.prepare(image)
        return self._images[image]

    def _check_models(self) -> None:
        """Leaves out tasks that need a model that there is none of."""
        for task_id, spec in list(self.specs.items()):
            if lacks := [f"step {step.id!r}: {line}" for step in spec.steps for line in step.lacks(self.models)]:
                self._leave_out(task_id, "; ".join(lacks))

    def _check_capabilities(self) -> None:
        """Leaves out tasks that ask the provider for what it can't do."""
        provider = self.host.provider
        seen: dict[tuple[str, object], str] = {}
        for task_id, spec in list(self.specs.items()):
            for step in spec.deploys:
                options = step.options(provider.capabilities.max_ttl)
                if (step.env_id, options) not in seen:
                    asked = sandbox_spec(self.bundle.envs[step.env_id].servers[0], PreparedImage("", ()), options)
                    try:
                        refuse_unsupported(provider.name, provider.capabilities, asked)
                        seen[step.env_id, options] = ""
                    except Unsupported as exc:
                        seen[step.env_id, options] = describe(exc)
                if reason := seen[step.env_id, options]:
                    self._leave_out(task_id, f"step {step.id!r}: {reason}")
            try:
                for order in spec.orders(provider.capabilities.max_ttl):
                    refuse_unsupported(provider.name, provider.capabilities, order.spec(""))
            except Unsupported as exc:
                self._leave_out(task_id, f"a step's sandbox can't be had: {describe(exc)}")

    async def _prepare(self) -> None:
        """Prepares every image, and leaves out the tasks whose images can't be."""
        users: dict[str, list[str]] = defaultdict(list)
        work: dict[str, Callable[[], Awaitable[object]]] = {}
        for task_id, spec in self.specs.items():
            for name, prepare in self._images_of(spec).items():
                work[name] = prepare
                users[name].append(task_id)
        slots = asyncio.Semaphore(BUILDS_AT_ONCE)
        started = [self._prepare_one(name, prepare, len(users[name]), slots) for name, prepare in work.items()]
        warm, *outcomes = await asyncio.gather(self.verifiers.start(), *started, return_exceptions=True)
        for outcome in (warm, *outcomes):
            if isinstance(outcome, BaseException) and (outcome is warm or isinstance(outcome, ConfigError)):
                raise outcome
        for name, outcome in zip(work, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                for task_id in users[name]:
                    self._leave_out(task_id, f"{name} can't be prepared: {describe(outcome)}")

    def _images_of(self, spec: EpisodeSpec) -> dict[str, Callable[[], Awaitable[object]]]:
        """How each image that a task needs is prepared, by what it is called in messages."""
        envs = {env.id: env for step in spec.deploys for env in self.bundle.envs[step.env_id].servers}
        found: dict[str, Callable[[], Awaitable[object]]] = {
            f"the image of env {env.name!r}": partial(self.deployer.prepare, env) for env in envs.values()
        }
        for order in spec.orders(self.host.provider.capabilities.max_ttl):
            image = order.image
            name = image.ref if image.context is None else f"of {image.context.name}/{image.dockerfile}"
            found[f"the image {name}"] = partial(self.image, image)
        return found

    async def _prepare_one(
        self, name: str, prepare: Callable[[], Awaitable[object]], tasks: int, slots: asyncio.Semaphore
    ) -> None:
        async with slots:
            began = time.monotonic()
            self._say(f"preparing {name} with {self.host.provider.name} ({tasks} {'task' if tasks == 1 else 'tasks'})")
            build = asyncio.ensure_future(prepare())
            try:
                while not (await asyncio.wait({build}, timeout=SAY_AGAIN))[0]:
                    self._say(f"still preparing {name} ({time.monotonic() - began:.0f} s)")
            finally:
                build.cancel()
            await build
            self._say(f"prepared {name} in {time.monotonic() - began:.1f} s")

    def _leave_out(self, task_id: str, reason: str) -> None:
        if self.specs.pop(task_id, None) is not None:
            self.left_out[task_id] = reason

    def _tell_left_out(self) -> None:
        total = len(self.bundle.tasks)
        for reason, names in by_reason(self._left_out_names()).items():
            log.warning("left out %d of %d tasks (%s): %s", len(names), total, few(names), reason)

    def _left_out_names(self) -> list[tuple[str, str]]:
        return [(task.name, self.left_out[task.id]) for task in self.bundle.tasks if task.id in self.left_out]

    def _refuse_none(self) -> None:
        if self.specs:
            return
        found = by_reason(self._left_out_names())
        problems = [Problem(f"tasks ({few(names)})", reason) for reason, names in found.items()]
        subject = f"bundle {self.bundle.name!r}, of which no task can be played,"
        raise BundleError(subject, problems or [Problem("tasks", "there are none", "add one")])

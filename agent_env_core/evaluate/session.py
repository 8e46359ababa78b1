"""One evaluation from its settings to its summary: what ``agent-env run`` does, for whoever calls it from Python."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent_env_core.bundle import Bundle, load_bundle
from agent_env_core.errors import ModelError
from agent_env_core.evaluate import script
from agent_env_core.evaluate.evaluation import CONCURRENCY, Evaluation, Kept, combiner
from agent_env_core.evaluate.plan import Plan, make_plan
from agent_env_core.evaluate.player import MAX_ANSWERS, Answers
from agent_env_core.evaluate.record import Row
from agent_env_core.evaluate.results import Results
from agent_env_core.evaluate.summary import Summary
from agent_env_core.models import ChatModel, ModelSettings
from agent_env_core.play.runner import Runner
from agent_env_core.play.spec import EpisodeSpec
from agent_env_core.steps.base import declaration

OURS = Path(__file__).resolve().parents[1] / "bundles"
"""Bundles of our own, which may run with as little isolation as there is."""


@dataclass(frozen=True)
class Settings:
    """What to run.

    Attributes:
        bundle: A folder, or the name of an installed bundle.
        tasks: Names or ids of tasks; without any and without evals, see :func:`~.plan.make_plan`.
        evals: Names or ids of evals.
        models: The model that plays, as ``models.model``, and where it is; None plays the bundle's own script, where it
            brings one. The models that judge and stand in for users, too.
        params: Fields of every request to the model that plays.
        max_answers: Answers that a turn may take.
        end_turn: Whether to offer the tool ``end_turn``, as trainers do.
        sandbox: A provider's name, or several with commas; None is Docker, and for our own bundles ``process`` first.
        repeat: How often each task is played.
        concurrency: How many episodes at once.
        seed: ``<key>`` in any text of any step becomes the key's value.
        reward: The one score that counts, where a task has several; by default their mean.
        out: The folder of the results; by default one of its own in ``agent-env-results``.
        resume: Whether to go on with the run in ``out``.
        keep: Whether to leave deployments standing.
    """

    bundle: str
    tasks: tuple[str, ...] = ()
    evals: tuple[str, ...] = ()
    models: ModelSettings = field(default_factory=ModelSettings.from_env)
    params: Mapping[str, Any] = field(default_factory=dict)
    max_answers: int = MAX_ANSWERS
    end_turn: bool = False
    sandbox: str | None = None
    repeat: int = 1
    concurrency: int = CONCURRENCY
    seed: Mapping[str, str] = field(default_factory=dict)
    reward: str | None = None
    out: Path | None = None
    resume: bool = False
    keep: bool = False


class Session:
    """One evaluation. Made outside an event loop, since it reads the bundle; run once, on one.

    Args:
        settings: What to run.
        say: Told what is being done, in lines for a person.

    Attributes:
        settings: What to run.
        plan: The tasks.
        out: Where the results go.
        model_title: The model, for a person.
        sandbox: The provider, or several with commas.
        evaluation: Once it runs.
        summary: Once it has ended, in whatever way.

    Raises:
        BundleError: The bundle can't be read.
        NothingSelected: It has no such tasks.
        ModelError: No model is named, and the bundle brings no script; or no API is.
        ValueError: ``reward`` doesn't fit the tasks.
    """

    def __init__(self, settings: Settings, *, say: Callable[[str], None] = lambda line: None) -> None:
        self.settings = settings
        self._say = say
        bundle = load_bundle(settings.bundle, declaration)
        self.plan: Plan = make_plan(bundle, settings.tasks, settings.evals, settings.seed)
        for spec in self.plan.specs.values():
            combiner(settings.reward, spec)
        self.sandbox = settings.sandbox or ("process,docker" if bundle.root.is_relative_to(OURS) else "docker")
        self.out = settings.out or _folder(bundle)
        self._chat: ChatModel | None = None
        self._scripts: script.Scripts | None = None
        name = settings.models.model or (script.NAME if script.has_script(bundle.root) else None)
        if name == script.NAME:
            self._scripts = script.Scripts(bundle)
            self.model_title = f"{script.NAME}: the answers in the bundle's {script.FILE}"
        elif name is None:
            raise ModelError(
                f"no model is named, and the bundle {bundle.name!r} brings no {script.FILE} to play: name one with"
                " --model, and its server with --base-url or OPENAI_BASE_URL"
            )
        elif lack := settings.models.lacks_api:
            raise ModelError(f"the model {name!r} can't be asked: {lack}")
        else:
            self._chat = settings.models.open(name, params=settings.params)
            self.model_title = f"{name} at {self._chat.base_url}"
        self.evaluation: Evaluation | None = None
        self.summary: Summary | None = None

    @property
    def bundle(self) -> Bundle:
        """The bundle."""
        return self.plan.bundle

    async def check(self) -> Mapping[str, str]:
        """Does everything that comes before the first episode: asks the model's server, prepares images.

        Returns:
            The tasks that can't be played, by id, and why.

        Raises:
            AgentEnvError: Nothing can be run.
        """
        async with AsyncExitStack() as stack:
            runner = await self._ready(stack)
            return {**self.plan.refused, **runner.left_out}

    async def run(
        self,
        on_end: Callable[[Row], None] = lambda row: None,
        hold: Callable[[Sequence[Kept]], Awaitable[None]] | None = None,
    ) -> Summary:
        """Plays everything. Cancelling it tears everything down first; ``summary`` then tells of what there is.

        Args:
            on_end: Told of each row as it is written.
            hold: Awaited with what is kept; when it returns, that is torn down as well.

        Raises:
            AgentEnvError: Nothing can be run, or the results can't be written.
        """
        async with AsyncExitStack() as stack:
            results = stack.enter_context(Results(self.out, self._described(), resume=self.settings.resume))
            evaluation = self.evaluation = Evaluation(
                self.plan,
                self._answers,
                results,
                repeat=self.settings.repeat,
                concurrency=self.settings.concurrency,
                params={} if self._scripts else self.settings.params,
                max_answers=self.settings.max_answers,
                end_turn=self.settings.end_turn,
                reward=self.settings.reward,
                keep=self.settings.keep,
                on_end=on_end,
            )
            runner = await self._ready(stack) if evaluation.left else None
            began = time.monotonic()
            try:
                if runner is not None:
                    await evaluation.run(runner)
            finally:
                self.summary = evaluation.summary(time.monotonic() - began)
                results.summarize(self.summary.to_json())
            if hold is not None and evaluation.kept:
                await hold(evaluation.kept)
            return self.summary

    # -- small parts

    async def _ready(self, stack: AsyncExitStack) -> Runner:
        """The model checked, and a started runner."""
        if self._chat is not None:
            await stack.enter_async_context(self._chat)
            self._say(await self._chat.check())
        specs = self.plan.specs.values()
        runner = Runner(
            self.bundle, sandbox=self.sandbox, specs=specs, models=self.settings.models, on_progress=self._say
        )
        return await stack.enter_async_context(runner)

    def _answers(self, spec: EpisodeSpec) -> Answers:
        if self._scripts is not None:
            return self._scripts.of(spec.task.name)
        assert self._chat is not None
        return self._chat

    def _described(self) -> dict[str, Any]:
        """What ``run.json`` says; no secret is among it."""
        chat = self._chat
        return {
            "bundle": self.bundle.name,
            "bundle_id": self.bundle.id_root,
            "model": chat.model if chat else script.NAME,
            "base_url": chat.base_url if chat else None,
            "params": dict(self.settings.params),
            "max_answers": self.settings.max_answers,
            "end_turn": self.settings.end_turn,
            "sandbox": self.sandbox,
            "seed": dict(self.settings.seed),
            "reward": self.settings.reward,
            "repeat": self.settings.repeat,
            "tasks": [task.name for task in self.plan.tasks],
            "started_at": datetime.now(UTC).isoformat(),
        }


def _folder(bundle: Bundle) -> Path:
    """A folder that isn't there yet."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    base = Path("agent-env-results") / f"{bundle.name}-{stamp}"
    number = 1
    while (path := base if number == 1 else base.with_name(f"{base.name}-{number}")).exists():
        number += 1
    return path

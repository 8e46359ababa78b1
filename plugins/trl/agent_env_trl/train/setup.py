"""A training run, set up and checked: everything that can be wrong is said at once, before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env_core.adapters import Trainer, TrainerAdapter
from agent_env_core.errors import AgentEnvError, Problem, SetupError, describe
from agent_env_core.plugins import plugins
from agent_env_trl.agent_env import AgentEnv, NoSuchSplit
from agent_env_trl.plugin import sharing_processes
from agent_env_trl.train import checks, versions
from agent_env_trl.train.chat import Model, context_problems, template_problems
from agent_env_trl.train.settings import Settings


@dataclass(frozen=True)
class Run:
    """A run that may start.

    Attributes:
        settings: What the training file says.
        adapter: The trainer's adapter.
        env: The tasks.
        config: The trainer's configuration.
        peft_config: The ``peft.LoraConfig``, if one was asked for.
        checkpoint: The checkpoint to go on from.
    """

    settings: Settings
    adapter: TrainerAdapter
    env: AgentEnv
    config: Any
    peft_config: Any
    checkpoint: str | None

    def trainer(self) -> Trainer:
        """Makes the trainer, which loads the model."""
        return self.adapter.trainer(
            self.env,
            self.config,
            model=self.settings.model,
            eval_split=self.settings.eval_split,
            peft_config=self.peft_config,
        )


class Setup:
    """Sets a run up, and collects what stands against it.

    Args:
        settings: What the training file says.
        path: The file, for messages.
    """

    def __init__(self, settings: Settings, path: Path) -> None:
        self._settings = settings
        self._path = path
        self._problems: list[Problem] = []

    def run(self) -> Run:
        """Checks everything, and starts a local server or connects to the one that is named.

        Raises:
            PluginError: No plugin has such a trainer.
            SetupError: Something is wrong; ``problems`` says all of it.
        """
        settings = self._settings
        adapter = plugins().trainer_adapter(settings.trainer)
        self._problems += versions.problems(
            adapter.requires, settings.arguments, peft=settings.peft is not None, local=settings.bundle is not None
        )
        self._refuse()  # what follows imports them
        maker = adapter.config_class()
        config = self._config(maker)
        peft_config = self._peft_config()
        checkpoint, found = checks.checkpoint(settings, maker)
        self._problems += found
        model = self._model()
        arguments = settings.arguments if config is None else vars(config)
        env = self._env(adapter, arguments)
        try:
            if env is not None and config is not None:
                lines = adapter.check(env, arguments, model=settings.model, peft_config=peft_config)
                self._problems += [Problem("arguments", line) for line in lines]
            if env is not None:
                self._against(env, arguments, model)
            self._refuse()
        except BaseException:
            if env is not None:
                env.close()
            raise
        assert env is not None
        return Run(settings, adapter, env, config, peft_config, checkpoint)

    def _refuse(self) -> None:
        if self._problems:
            raise SetupError(str(self._path), self._problems)

    def _config(self, maker: Callable[..., Any]) -> Any:
        arguments = self._settings.arguments
        found = checks.fields(maker, arguments, "arguments")
        found += checks.batches(maker, arguments, sharing_processes(local=False))
        found += checks.precision(maker, arguments)
        found += checks.evaluation(self._settings, maker)
        self._problems += found
        if found:
            return None
        try:
            return maker(**arguments)
        except Exception as exc:  # whatever a trainer's library makes of it is about these arguments
            self._problems.append(Problem("arguments", describe(exc)))
            return None

    def _peft_config(self) -> Any:
        given = self._settings.peft
        if given is None:
            return None
        from peft import LoraConfig

        found = checks.fields(LoraConfig, given, "peft")
        self._problems += found
        try:
            return None if found else LoraConfig(**given)
        except Exception as exc:  # as for the trainer's configuration
            self._problems.append(Problem("peft", describe(exc)))

    def _model(self) -> Model | None:
        model = Model.read(self._settings.model)
        if isinstance(model, Problem):
            self._problems.append(model)
            return None
        self._problems += template_problems(model)
        return model

    def _env(self, adapter: TrainerAdapter, arguments: Mapping[str, Any]) -> AgentEnv | None:
        settings = self._settings
        shared: dict[str, Any] = {
            "split": settings.split,
            "reward": settings.reward,
            "tool_timeout": settings.tool_timeout,
            "reset_timeout": settings.reset_timeout,
            "answer_limit": settings.answer_limit,
        }
        try:
            if settings.url is not None:
                return AgentEnv(settings.url, **shared)
            assert settings.bundle is not None
            sessions = settings.max_concurrent_envs
            if sessions is None:
                sessions = max(1, adapter.rollouts(arguments)) * sharing_processes(local=True)
            return AgentEnv.local(
                settings.bundle, sandbox=settings.sandbox, max_concurrent_envs=sessions, warm=settings.warm, **shared
            )
        except NoSuchSplit as exc:
            self._problems.append(Problem("split", str(exc)))
        except (AgentEnvError, ValueError, TypeError) as exc:
            self._say(exc)
        return None

    def _say(self, exc: Exception) -> None:
        self._problems.append(Problem("bundle" if self._settings.url is None else "url", str(exc)))

    def _against(self, env: AgentEnv, arguments: Mapping[str, Any], model: Model | None) -> None:
        """Checks the tasks against the model."""
        settings = self._settings
        try:
            rows = [*env.dataset, *(env.dataset_for(settings.eval_split) if settings.eval_split else ())]
            tools = shown_tools(env)
        except NoSuchSplit as exc:
            self._problems.append(Problem("eval_split", str(exc)))
            return
        except (AgentEnvError, ValueError) as exc:
            self._say(exc)
            return
        if not len(env.dataset):
            self._problems.append(Problem("split", f"{settings.split!r} holds no task"))
        if model is not None:
            with suppress(TypeError, ValueError):  # a template that can't show the prompts: said already, or by TRL
                self._problems += context_problems(model, rows, tools, arguments)


def shown_tools(env: AgentEnv) -> dict[str, Sequence[Callable[..., Any]]]:
    """The tools that the model is shown, by environment; the only environment's name is empty."""
    factory = env.factory
    classes = factory if isinstance(factory, dict) else {"": factory}
    return {name: _tools(cls) for name, cls in classes.items()}


def _tools(cls: type) -> list[Callable[..., Any]]:
    environment = cls()  # touches no network
    names = sorted(name for name in dir(cls) if not name.startswith("_") and name not in ("reset", "get_reward"))
    return [getattr(environment, name) for name in names]


def main_process() -> bool:
    """Whether this is the process of a run that speaks for all."""
    return os.environ.get("RANK", "0") == "0"

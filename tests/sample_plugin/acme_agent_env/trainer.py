"""``trainer: stroll``: plays rows with one number, learns nothing, and writes down the rewards it got."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env_core import hookimpl
from agent_env_core.adapters import Trainer, TrainerAdapter


@dataclass
class StrollConfig:
    """What a training file may set.

    Attributes:
        output_dir: Where the rewards go.
        rollouts: How many rollouts to play.
        number: The number.
    """

    output_dir: str
    rollouts: int = 2
    number: int = 7


class StrollTrainer:
    """Plays, one rollout after another."""

    def __init__(self, config: StrollConfig, rows: Any, environment: Any) -> None:
        self._config, self._rows, self._environment = config, rows, environment
        self._rewards: list[float | None] = []

    def train(self, *, resume_from_checkpoint: str | None = None) -> None:
        """Plays the rows from the first on."""
        for number in range(self._config.rollouts):
            self._environment.reset(**self._rows[number % len(self._rows)])
            self._environment.guess(number=self._config.number)
            self._rewards.append(self._environment.get_reward())

    def save_model(self) -> None:
        """Writes down what it got."""
        Path(self._config.output_dir).mkdir(parents=True, exist_ok=True)
        (Path(self._config.output_dir) / "rewards.json").write_text(json.dumps(self._rewards), encoding="utf-8")


class Stroll:
    """Fits an ``AgentEnv`` to :class:`StrollTrainer`."""

    name = "stroll"
    requires: tuple[str, ...] = ("agentenv-framework-trl",)

    def config_class(self) -> Callable[..., Any]:
        """The configuration's class."""
        return StrollConfig

    def rollouts(self, arguments: Mapping[str, Any]) -> int:
        """One after another."""
        return 1

    def check(
        self, env: Any, arguments: Mapping[str, Any], *, model: str | None = None, peft_config: Any = None
    ) -> list[str]:
        """Refuses numbers that the game doesn't have."""
        number = arguments["number"]
        return [] if number > 0 else [f"number is {number}, and the game's begin with 1: set number: 1 or more"]

    def arguments(self, env: Any, *, dataset: Any = None) -> dict[str, Any]:
        """Rows, and one environment."""
        return {"rows": env.dataset if dataset is None else dataset, "environment": env.factory()}

    def trainer(
        self, env: Any, config: Any, *, model: str, eval_split: str | None = None, peft_config: Any = None
    ) -> Trainer:
        """The trainer; it has no use for the model."""
        return StrollTrainer(config, **self.arguments(env))


@hookimpl
def agent_env_trainer_adapters(register: Callable[[str, Callable[[], TrainerAdapter]], None]) -> None:
    """Registers ``stroll``."""
    register("stroll", Stroll)

"""What a trainer adapter is: the piece that fits an ``AgentEnv`` to one trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Scores = Mapping[str, float]
"""An episode's scores: scoring step id to score."""

Combiner = Callable[[Scores], float | None]
"""Scores to the reward; None leaves the rollout out. A user's ``reward=`` function has the same shape."""


class Trainer(Protocol):
    """A trainer that is ready to train."""

    def train(self, *, resume_from_checkpoint: str | None = None) -> Any:
        """Trains to the end.

        Args:
            resume_from_checkpoint: The folder of a checkpoint to go on from.
        """

    def save_model(self) -> None:
        """Saves what was trained to the output folder of the configuration."""


class TrainerAdapter(Protocol):
    """Fits an ``AgentEnv`` to one trainer class.

    ``agent-env train`` asks in this order: :attr:`requires`, :meth:`config_class`, :meth:`rollouts`, :meth:`check`, and
    at last :meth:`trainer`, which is the first that may load a model.
    """

    name: str

    requires: tuple[str, ...]
    """The distributions that it needs, as requirements: ``("trl>=1.15",)``."""

    def config_class(self) -> Callable[..., Any]:
        """The class of the trainer's configuration, e.g. ``trl.GRPOConfig``. Imports the trainer's library.

        Its parameters are what a training file may set; what it makes is read with ``vars``.
        """

    def rollouts(self, arguments: Mapping[str, Any]) -> int:
        """How many rollouts one process of the run plays at once, evaluations included: the sessions that it holds.

        Args:
            arguments: The trainer's configuration, by field name.
        """

    def check(
        self, env: Any, arguments: Mapping[str, Any], *, model: str | None = None, peft_config: Any = None
    ) -> list[str]:
        """Looks for settings that can't work, before a model is loaded.

        Args:
            env: The ``AgentEnv``.
            arguments: The trainer's configuration, by field name.
            model: The model's name on a hub, or its folder, where it's known.
            peft_config: A ``peft.LoraConfig``; None trains the whole model.

        Returns:
            One line a problem, each with its fix; empty when all is well.
        """

    def arguments(self, env: Any, *, dataset: Any = None) -> dict[str, Any]:
        """The keyword arguments that connect the trainer to ``env``: dataset and environment factory.

        Args:
            env: The ``AgentEnv``.
            dataset: Rows of the user's own to train on; None takes ``env.dataset``.

        Raises:
            ValueError: A row can't be played; the message has its number.
        """

    def trainer(
        self, env: Any, config: Any, *, model: str, eval_split: str | None = None, peft_config: Any = None
    ) -> Trainer:
        """Makes the trainer; this loads the model.

        Args:
            env: The ``AgentEnv``.
            config: What :meth:`config_class` made.
            model: The model's name on a hub, or its folder.
            eval_split: The split to evaluate on, for a trainer that evaluates.
            peft_config: A ``peft.LoraConfig``; None trains the whole model.
        """

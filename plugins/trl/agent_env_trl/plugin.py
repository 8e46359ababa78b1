"""The adapter for TRL's ``GRPOTrainer``, registered under the name ``grpo``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_core.adapters import Trainer, TrainerAdapter
from agent_env_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from datasets import Dataset

    from agent_env_trl.agent_env import AgentEnv


class Grpo:
    """Fits an ``AgentEnv`` to ``trl.GRPOTrainer``.

    ``GRPOTrainer`` plays a generation batch together and asks for its rewards when all of it is complete. So the first
    of them has the whole batch scored at once.
    """

    name = "grpo"
    requires: tuple[str, ...] = ("trl>=1.15", "transformers>=5.2", "accelerate")

    def config_class(self) -> Callable[..., Any]:
        """``trl.GRPOConfig``."""
        from trl import GRPOConfig

        return GRPOConfig

    def rollouts(self, arguments: Mapping[str, Any]) -> int:
        """The larger of the generation batch and the evaluation batch of one process."""
        return max(_train_rollouts(arguments), _eval_rollouts(arguments))

    def check(
        self, env: AgentEnv, arguments: Mapping[str, Any], *, model: str | None = None, peft_config: Any = None
    ) -> list[str]:
        """Compares the sessions a step needs with those the server allows, before a model is loaded.

        Args:
            env: The ``AgentEnv``.
            arguments: A ``GRPOConfig``'s fields, e.g. ``vars(config)``.
            model: Makes no difference here.
            peft_config: Nor does this.
        """
        processes = sharing_processes(local=env._local is not None)
        limit = env.info.max_concurrent_envs
        problems = []
        for setting, needed in (
            ("per_device_train_batch_size times steps_per_generation", _train_rollouts(arguments)),
            ("per_device_eval_batch_size", _eval_rollouts(arguments)),
        ):
            if limit is not None and needed * processes > limit:
                across = f" on each of {processes} processes" if processes > 1 else ""
                problems.append(
                    f"{setting} is {needed}{across}: {needed * processes} rollouts at once, and the server at"
                    f" {env.url} allows {limit} sessions: serve the bundle with"
                    f" max_concurrent_envs={needed * processes} (or MAX_CONCURRENT_ENVS), or make the batch smaller"
                )
        return problems

    def arguments(self, env: AgentEnv, *, dataset: Dataset | None = None) -> dict[str, Any]:
        """See :meth:`agent_env_core.adapters.TrainerAdapter.arguments`: these are the trainer's keywords."""
        return {"train_dataset": checked(env, dataset), "environment_factory": env._factory(together=True)}

    def trainer(
        self, env: AgentEnv, config: Any, *, model: str, eval_split: str | None = None, peft_config: Any = None
    ) -> Trainer:
        """A ``GRPOTrainer``; TRL loads the model by its name."""
        from agent_env_trl.grpo import ResumableGRPOTrainer

        rows = None if eval_split is None else env.dataset_for(eval_split)
        trainer: Trainer = ResumableGRPOTrainer(
            model=model, args=config, eval_dataset=rows, peft_config=peft_config, **self.arguments(env)
        )
        return trainer


def checked(env: AgentEnv, dataset: Dataset | None) -> Dataset:
    """The rows to train on: somebody's own, if each can be played, else those of ``env``.

    Raises:
        ValueError: A row can't be played; the message has its number.
    """
    if dataset is None:
        return env.dataset
    env.check_dataset(dataset)
    return dataset


def sharing_processes(*, local: bool) -> int:
    """Training processes that play on one server, as torchrun and accelerate tell their children.

    Args:
        local: Whether it's the server that ``AgentEnv.local`` starts on each node, for the ranks of that node; another
            host's is everybody's.
    """
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE" if local else "WORLD_SIZE", "1")))
    except ValueError:
        return 1


def _train_rollouts(arguments: Mapping[str, Any]) -> int:
    """Rollouts one process plays together in training."""
    whole = arguments.get("generation_batch_size")
    if whole:
        return -(-int(whole) // sharing_processes(local=False))
    steps = arguments.get("steps_per_generation") or arguments.get("gradient_accumulation_steps") or 1
    return int(arguments.get("per_device_train_batch_size") or 8) * int(steps)


def _eval_rollouts(arguments: Mapping[str, Any]) -> int:
    """Rollouts one process plays together in an evaluation; 0 where there is none."""
    strategy = str(arguments.get("eval_strategy") or "no").rpartition(".")[2].lower()
    return 0 if strategy == "no" else int(arguments.get("per_device_eval_batch_size") or 8)


@hookimpl
def agent_env_trainer_adapters(register: Callable[[str, Callable[[], TrainerAdapter]], None]) -> None:
    """Registers ``grpo``."""
    register("grpo", Grpo)

"""The adapter for TRL's ``GRPOTrainer``, registered under the name ``grpo``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from agent_env_core.adapters import TrainerAdapter
from agent_env_core.hookspecs import hookimpl


class Grpo:
    """Fits an ``AgentEnv`` to ``trl.GRPOTrainer``.

    ``GRPOTrainer`` plays a generation batch together and asks for its rewards when all of it is complete. So the first
    of them has the whole batch scored at once.
    """

    name = "grpo"

    def check(self, env: Any, arguments: Mapping[str, Any]) -> list[str]:
        """Compares the sessions a step needs with those the server allows, before a model is loaded.

        Args:
            env: The ``AgentEnv``.
            arguments: A ``GRPOConfig``'s fields, e.g. ``vars(config)``.
        """
        # each process has a local server of its own; another host's is everybody's
        processes = 1 if getattr(env, "_local", None) is not None else _processes()
        limit = env.info.max_concurrent_envs
        problems = []
        for setting, needed in (
            ("per_device_train_batch_size times steps_per_generation", _train_rollouts(arguments)),
            ("per_device_eval_batch_size", _eval_rollouts(arguments)),
        ):
            if needed * processes > limit:
                across = f" on each of {processes} processes" if processes > 1 else ""
                problems.append(
                    f"{setting} is {needed}{across}: {needed * processes} rollouts at once, and the server at"
                    f" {env.url} allows {limit} sessions: serve the bundle with"
                    f" max_concurrent_envs={needed * processes} (or MAX_CONCURRENT_ENVS), or make the batch smaller"
                )
        return problems

    def arguments(self, env: Any) -> dict[str, Any]:
        """``train_dataset`` and ``environment_factory`` for the trainer."""
        return {"train_dataset": env.dataset, "environment_factory": env._factory(together=True)}


def _processes() -> int:
    """Training processes of this run, as torchrun and accelerate tell their children."""
    try:
        return max(1, int(os.environ.get("WORLD_SIZE", "1")))
    except ValueError:
        return 1


def _train_rollouts(arguments: Mapping[str, Any]) -> int:
    """Rollouts one process plays together in training."""
    whole = arguments.get("generation_batch_size")
    if whole:
        return -(-int(whole) // _processes())
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

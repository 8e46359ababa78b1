"""The adapter for TRL's ``AsyncGRPOTrainer``, registered under the name ``async_grpo``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_trl.plugin import checked, sharing_processes

from agent_env_core.adapters import Trainer, TrainerAdapter
from agent_env_core.hookspecs import hookimpl
from agent_env_trl_async import context, machine, vllm

if TYPE_CHECKING:
    from agent_env_trl.agent_env import AgentEnv
    from datasets import Dataset


class AsyncGrpo:
    """Fits an ``AgentEnv`` to ``AsyncGRPOTrainer``.

    That plays rollouts in one process of its own, while a vLLM server generates and the others train.
    """

    name = "async_grpo"
    requires: tuple[str, ...] = ("trl>=1.15", "transformers>=5.2", "accelerate", "aiohttp", "requests")

    def config_class(self) -> Callable[..., Any]:
        """``AsyncGRPOConfig``."""
        config: Callable[..., Any] = _exported("AsyncGRPOConfig")
        return config

    def rollouts(self, arguments: Mapping[str, Any]) -> int:
        """What is in flight, as a share of each process of this machine: one process plays for all of them."""
        return -(-in_flight(arguments) // sharing_processes(local=True))

    def check(
        self, env: AgentEnv, arguments: Mapping[str, Any], *, model: str | None = None, peft_config: Any = None
    ) -> list[str]:
        """Checks the settings against the env server, this machine, and the vLLM server, which must be running.

        Args:
            env: The ``AgentEnv``.
            arguments: An ``AsyncGRPOConfig``'s fields, e.g. ``vars(config)``.
            model: The model's name, by which the trainer asks vLLM for completions; None leaves that unchecked.
            peft_config: The ``peft.LoraConfig``, if there is one.
        """
        problems = [*_sessions(env, arguments), *_evaluation(arguments), *machine.problems()]
        server, found = vllm.read(str(arguments.get("vllm_server_base_url") or vllm.DEFAULT_URL))
        problems += found
        if server is not None:
            problems += vllm.problems(
                server, model=model, rank=_rank(peft_config), staleness=int(arguments.get("max_staleness", 4))
            )
            problems += context.problems(server, env, arguments)
        return problems

    def arguments(self, env: AgentEnv, *, dataset: Dataset | None = None) -> dict[str, Any]:
        """See :meth:`agent_env_core.adapters.TrainerAdapter.arguments`: these are the trainer's keywords."""
        return {"train_dataset": checked(env, dataset), "environment_factory": env.factory}

    def trainer(
        self, env: AgentEnv, config: Any, *, model: str, eval_split: str | None = None, peft_config: Any = None
    ) -> Trainer:
        """An ``AsyncGRPOTrainer``; TRL loads the model by its name.

        Raises:
            ValueError: ``eval_split`` is given, and this trainer evaluates nothing.
        """
        if eval_split is not None:
            raise ValueError(f"AsyncGRPOTrainer evaluates nothing, and eval_split is {eval_split!r}: leave it out")
        trainer: Trainer = _exported("AsyncGRPOTrainer")(
            model=model, args=config, peft_config=peft_config, **self.arguments(env)
        )
        return trainer


def in_flight(arguments: Mapping[str, Any]) -> int:
    """How many rollouts the run keeps going at once, of all processes together: ``max_inflight_tasks`` or its default.

    The default is TRL's: the samples of a step, as many times as a rollout may be steps old.
    """
    given = int(arguments.get("max_inflight_tasks", -1))
    if given >= 0:
        return given
    samples = int(arguments.get("per_device_train_batch_size") or 8)
    samples *= int(arguments.get("gradient_accumulation_steps") or 1) * sharing_processes(local=False)
    return max(int(arguments.get("max_staleness", 4)), 1) * samples


def _sessions(env: AgentEnv, arguments: Mapping[str, Any]) -> list[str]:
    needed, limit = in_flight(arguments), env.info.max_concurrent_envs
    if limit is None or needed <= limit:
        return []
    given = int(arguments.get("max_inflight_tasks", -1)) >= 0
    setting = "max_inflight_tasks is" if given else "max_inflight_tasks isn't set, so TRL makes it"
    return [
        f"{setting} {needed}, and the server at {env.url} allows {limit} sessions: serve the bundle with"
        f" max_concurrent_envs={needed} (or MAX_CONCURRENT_ENVS), or set max_inflight_tasks={limit}"
    ]


def _evaluation(arguments: Mapping[str, Any]) -> list[str]:
    strategy = str(arguments.get("eval_strategy") or "no").rpartition(".")[2].lower()
    if strategy == "no":
        return []
    return [
        f"eval_strategy is {strategy!r}, and AsyncGRPOTrainer evaluates nothing: leave it out, and evaluate checkpoints"
        " with `agent-env run`"
    ]


def _rank(peft_config: Any) -> int | None:
    """The largest rank of a LoRA adapter; None without one."""
    if peft_config is None:
        return None
    return max(map(int, [peft_config.r, *(getattr(peft_config, "rank_pattern", None) or {}).values()]))


def _exported(name: str) -> Any:
    """A class that TRL exports: from 1.18 on at the top, before that as an experiment."""
    import trl

    try:
        return getattr(trl, name)
    except AttributeError:
        from trl.experimental import async_grpo

        return getattr(async_grpo, name)


@hookimpl
def agent_env_trainer_adapters(register: Callable[[str, Callable[[], TrainerAdapter]], None]) -> None:
    """Registers ``async_grpo``."""
    register("async_grpo", AsyncGrpo)

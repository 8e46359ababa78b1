"""The adapter for ``GRPOTrainer``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent_env_core.plugins import plugins

ENV = SimpleNamespace(url="http://env-host:8000", info=SimpleNamespace(max_concurrent_envs=8), _local=None)


@pytest.mark.parametrize(
    ("arguments", "rollouts"),
    [
        ({"per_device_train_batch_size": 8}, None),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}, 32),
        ({"per_device_train_batch_size": 8, "steps_per_generation": 2, "gradient_accumulation_steps": 4}, 16),
        ({"generation_batch_size": 64, "per_device_train_batch_size": 8}, 64),
        ({"per_device_train_batch_size": 4, "eval_strategy": "steps", "per_device_eval_batch_size": 32}, 32),
        ({"per_device_train_batch_size": 4, "eval_strategy": "no", "per_device_eval_batch_size": 32}, None),
    ],
)
def test_too_few_sessions_are_told_before_a_model_is_loaded(arguments: dict[str, Any], rollouts: int | None) -> None:
    problems = plugins().trainer_adapter("grpo").check(ENV, arguments)
    if rollouts is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert f"max_concurrent_envs={rollouts} (or MAX_CONCURRENT_ENVS)" in problems[0]
        assert "allows 8 sessions" in problems[0]


def test_every_process_of_a_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    (problem,) = plugins().trainer_adapter("grpo").check(ENV, {"per_device_train_batch_size": 4})
    assert "is 4 on each of 4 processes: 16 rollouts at once" in problem


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_real_configuration_is_read() -> None:
    from trl import GRPOConfig

    config = GRPOConfig(
        output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8,
        use_cpu=True, bf16=False, report_to="none",
    )  # fmt: skip
    (problem,) = plugins().trainer_adapter("grpo").check(ENV, vars(config))
    assert "max_concurrent_envs=32" in problem


def test_a_local_server_is_shared_by_the_ranks_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    local = SimpleNamespace(**{**vars(ENV), "_local": object()})
    adapter = plugins().trainer_adapter("grpo")
    assert adapter.check(local, {"per_device_train_batch_size": 4}) == []
    (problem,) = adapter.check(local, {"per_device_train_batch_size": 8})
    assert "is 8 on each of 2 processes: 16 rollouts at once" in problem


def test_evaluations_count_among_the_rollouts_of_a_process() -> None:
    adapter = plugins().trainer_adapter("grpo")
    settings = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "per_device_eval_batch_size": 32}
    assert adapter.rollouts(settings) == 8
    assert adapter.rollouts({**settings, "eval_strategy": "steps"}) == 32


def test_its_arguments(env: Any) -> None:
    arguments = plugins().trainer_adapter("grpo").arguments(env)
    assert arguments["train_dataset"] is env.dataset
    assert arguments["environment_factory"]._spec.together


@pytest.mark.parametrize("name", ["grpo", "async_grpo"])
def test_rows_of_ones_own_are_checked_by_every_adapter(env: Any, name: str) -> None:
    """Before a model is loaded."""
    adapter = plugins().trainer_adapter(name)
    some = env.dataset.select([0])
    assert adapter.arguments(env, dataset=some)["train_dataset"] is some
    with pytest.raises(ValueError, match="row 0 of the dataset has the index 99, and the split 'train' has 2 tasks"):
        adapter.arguments(env, dataset=some.map(lambda row: {"index": 99}))

"""Evaluation: one sampled rollout a day, played as real episodes by the same trainer that trains."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from examples.train_gridsim import grpo
from examples.train_gridsim.progress import Bar, bar
from examples.train_gridsim.prompts import coded

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from examples.train_gridsim.settings import Settings

Rewards = dict[int, float | None]
"""The reward of each row by its index in the split; None where the episode ended unscored."""


def sample(rows: Dataset, count: int) -> Dataset:
    """``count`` rows spread evenly over the split, so that all seasons are in."""
    count = min(count, len(rows))
    return rows.select([number * len(rows) // count for number in range(count)])


def shuffled(rows: Dataset, seed: int) -> Dataset:
    """The rows with the letters of each price code in a random order, while the task stays as it is."""
    return rows.map(lambda row: {"prompt": coded(row["prompt"], random.Random(f"{seed}:{row['index']}"))})  # noqa: S311


def play(
    title: str,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: Dataset,
    factory: type,
    settings: Settings,
    console: Console,
) -> Rewards:
    """Plays one rollout of each row.

    Args:
        title: What the progress bar says.
        model: The model as it stands; it isn't changed.
        tokenizer: Its tokenizer.
        rows: Rows of a split, their prompts in the price code.
        factory: ``env.factory``.
        settings: How to sample, and how many episodes at once.
        console: Where the bar goes.
    """
    rewards: Rewards = {}
    with bar(console, title, len(rows)) as progress:
        made = grpo.trainer(model, tokenizer, rows, recording(factory, rewards, progress), settings)
        made.evaluate(eval_dataset=rows)
    return rewards


def recording(factory: type, rewards: Rewards, progress: Bar) -> type:
    """An environment class that notes every reward it hands to the trainer.

    TRL reports means; the share of the days that beat idling needs each day's reward.
    """
    base: Callable[..., Any] = factory

    class Recording(base):  # type: ignore[misc,valid-type]
        def reset(self, **row: Any) -> None:
            self._index = int(row["index"])
            super().reset(**row)

        def get_reward(self) -> float | None:
            reward: float | None = super().get_reward()
            rewards[self._index] = reward
            progress.step()
            return reward

    Recording.__name__ = factory.__name__
    return Recording

"""Evaluation: one sampled rollout a day, played as real episodes by the same trainer that trains."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from examples.train_gridsim import grpo
from examples.train_gridsim.episodes import watched
from examples.train_gridsim.progress import bar
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

        def note(index: int, reward: float | None) -> None:
            rewards[index] = reward
            progress.step()

        grpo.trainer(model, tokenizer, rows, watched(factory, note), settings).evaluate(eval_dataset=rows)
    return rewards

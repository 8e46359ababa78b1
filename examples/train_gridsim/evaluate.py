"""Evaluation: one sampled rollout a day, played as real episodes by the same trainer that trains."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from examples.train_gridsim.progress import bar
from examples.train_gridsim.prompts import coded

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console
    from trl import GRPOTrainer

    from examples.train_gridsim.episodes import Watch

Rewards = dict[int, float | None]
"""The reward of each row by its index in the split; None where the episode ended unscored."""


def sample(rows: Dataset, count: int) -> Dataset:
    """``count`` rows spread evenly over the split, so that all seasons are in."""
    count = min(count, len(rows))
    return rows.select([number * len(rows) // count for number in range(count)])


def shuffled(rows: Dataset, seed: int) -> Dataset:
    """The rows with the letters of each price code in a random order, while the task stays as it is."""
    return rows.map(lambda row: {"prompt": coded(row["prompt"], random.Random(f"{seed}:{row['index']}"))})  # noqa: S311


def play(title: str, trainer: GRPOTrainer, watch: Watch, rows: Dataset, console: Console) -> Rewards:
    """Plays one rollout of each row with the trainer's model as it stands.

    Each batch of rows is sampled from a seed of its own, the same at every call: models that are much alike then answer
    alike, and what is left between them is what they learnt.

    Args:
        title: What the progress bar says.
        trainer: Made with the factory of ``watch``.
        watch: Tells the rewards.
        rows: Rows of a split, their prompts in the price code.
        console: Where the bar goes.
    """
    from transformers import set_seed

    rewards: Rewards = {}
    batch = trainer.args.per_device_eval_batch_size
    with bar(console, title, len(rows)) as progress:

        def note(index: int, reward: float | None) -> None:
            rewards[index] = reward
            progress.step()

        with watch.telling(note):
            for begin in range(0, len(rows), batch):
                set_seed(trainer.args.seed + begin)
                trainer.evaluate(eval_dataset=rows.select(range(begin, min(begin + batch, len(rows)))))
    return {index: rewards.get(index) for index in rows["index"]}

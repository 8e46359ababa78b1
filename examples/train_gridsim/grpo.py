"""GRPO: TRL's ``GRPOTrainer`` on the episodes that the served bundle plays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from examples.train_gridsim.progress import Steps, bar
from examples.train_gridsim.prompts import coded

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from examples.train_gridsim.episodes import Watch
    from examples.train_gridsim.settings import Settings


def config(settings: Settings) -> GRPOConfig:
    """The trainer's settings, for training and for evaluations: both sample in the same way."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=str(settings.out / "grpo"),
        max_steps=settings.grpo_steps * settings.passes,  # TRL counts updates
        num_iterations=settings.passes,
        per_device_train_batch_size=settings.rollouts,
        num_generations=settings.generations,
        per_device_eval_batch_size=settings.rollouts,
        num_generations_eval=1,
        max_completion_length=settings.max_completion_length,
        max_tool_calling_iterations=2,
        temperature=settings.temperature,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        loss_type="dr_grpo",
        beta=0.0,
        epsilon_high=0.28,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )


def make_trainer(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, rows: Dataset, factory: type, settings: Settings
) -> GRPOTrainer:
    """A ``GRPOTrainer`` that plays ``rows`` in environments of ``factory``. The environments own the reward.

    One trainer does all of a run's playing: it keeps its environments, and each keeps its session on the server.
    """
    from transformers import PrinterCallback
    from trl import GRPOTrainer

    trainer = GRPOTrainer(
        model=model,
        args=config(settings),
        train_dataset=rows,
        processing_class=tokenizer,
        environment_factory=factory,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def in_price_code(rows: Dataset) -> Dataset:
    """The rows of ``env.dataset`` with their prompts in the price code; what says which task to play stays."""
    return rows.map(lambda row: {"prompt": coded(row["prompt"])})


def train(trainer: GRPOTrainer, watch: Watch, console: Console) -> tuple[list[dict[str, Any]], int]:
    """Trains the model's norms; returns what was logged, one entry a step's episodes, and how many had no score.

    Five hundred episodes say little about 600,000 weights: updates of all of them are mostly noise. The 1,408 of the
    norms are enough to make the model surer of what pays.
    """
    assert trainer.model is not None
    for name, weights in trainer.model.named_parameters():
        weights.requires_grad_("norm" in name)
    rewards: list[float | None] = []
    with (
        bar(console, "GRPO", trainer.args.max_steps // trainer.num_iterations) as progress,
        watch.telling(lambda index, reward: rewards.append(reward)),
    ):
        trainer.add_callback(Steps(progress, "reward"))
        trainer.train()
    played = (entry for entry in trainer.state.log_history if "reward" in entry)  # other updates learn from the same
    return [{**entry, "step": step} for step, entry in enumerate(played, 1)], rewards.count(None)

"""The warm start: TRL's ``SFTTrainer`` on the best schedules of the train days."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from examples.train_gridsim import gridsim
from examples.train_gridsim.model import call_message
from examples.train_gridsim.progress import Steps, bar
from examples.train_gridsim.prompts import Message, coded, task_of
from examples.train_gridsim.settings import WARM_START, Settings

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

WHOLE_EVERY = 8
"""One row in so many goes on to the end of the rollout; the others end with the schedule, which is what is hard."""


def rows() -> Dataset:
    """The bundle's warm-start rows in the price code, without the rationale: the tiny model knows no English."""
    from datasets import Dataset, load_dataset

    published = load_dataset("json", data_files=str(WARM_START), split="train")
    return Dataset.from_list([_row(row, whole=not number % WHOLE_EVERY) for number, row in enumerate(published)])


def _row(row: dict[str, Any], *, whole: bool) -> dict[str, Any]:
    actions = row["completion"][0]["tool_calls"][0]["function"]["arguments"]["actions"]
    completion = [_as_text(call_message("submit_schedule", actions=actions))]
    if whole:
        prices = task_of(row["prompt"])["prices_usd_per_mwh"]
        completion += [
            {"role": "tool", "name": "submit_schedule", "content": gridsim.report(prices, actions)},
            _as_text(call_message("end_turn")),
            {"role": "tool", "name": "end_turn", "content": "The episode has ended."},
            {"role": "assistant", "content": "Done."},
        ]
    return {"prompt": coded(row["prompt"]), "completion": completion, "tools": row["tools"]}


def _as_text(message: Message) -> Message:
    """The same call with its arguments as JSON text: a table of rows would mix the arguments of the two tools."""
    for call in message["tool_calls"]:
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return message


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, dataset: Dataset, settings: Settings, console: Console
) -> Qwen3ForCausalLM:
    """Trains ``model`` in place and returns it."""
    from transformers import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(
        output_dir=str(settings.out / "sft"),
        max_steps=settings.sft_steps,
        per_device_train_batch_size=settings.sft_batch,
        train_sampling_strategy="group_by_length",  # rows of one kind together: no padding
        learning_rate=3e-3,
        warmup_steps=min(20, settings.sft_steps // 4),
        adam_beta2=0.95,
        weight_decay=0.01,
        max_length=256,
        assistant_only_loss=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )
    trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
    trainer.remove_callback(PrinterCallback)
    with bar(console, "warm start (SFT)", settings.sft_steps) as progress:
        trainer.add_callback(Steps(progress, "loss"))
        trainer.train()
    return model

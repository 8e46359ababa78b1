"""Warm start: one epoch of GridSim's best schedules, in the very context that GRPO will generate from."""

from typing import Any

from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

OUT = "qwen3-4b-gridsim-sft"


def main() -> None:
    """Trains, merges the adapter, and saves the model that ``train.py`` starts from."""
    trainer = SFTTrainer(
        model="Qwen/Qwen3-4B",
        args=SFTConfig(
            output_dir="sft",
            num_train_epochs=1,
            max_length=2048,
            per_device_train_batch_size=8,
            learning_rate=1e-4,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            bf16=True,
            gradient_checkpointing=True,
            seed=0,
        ),
        train_dataset=load_dataset("json", data_files="sft/gridsim-v1/train.jsonl", split="train"),
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    model: Any = trainer.model  # a PeftModel, and its tokenizer: their types say less
    model.merge_and_unload().save_pretrained(OUT)
    tokenizer: Any = trainer.processing_class
    tokenizer.save_pretrained(OUT)


if __name__ == "__main__":
    main()

"""GRPO on GridSim's train days, from the model that ``sft.py`` made."""

import argparse

from agent_env.training.trl import AgentEnv
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    """Trains for 40 steps of 32 rollouts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="where serve.py runs; without it the bundle is served on this machine")
    url = parser.parse_args().url
    if url is None:
        env = AgentEnv.local("bundles/gridsim-v1", split="train", max_concurrent_envs=32)
    else:
        env = AgentEnv(url, split="train")
    trainer = GRPOTrainer(
        model="qwen3-4b-gridsim-sft",
        args=GRPOConfig(
            output_dir="out",
            max_steps=40,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,  # 32 rollouts a step: 4 days, 8 rollouts each
            num_generations=8,
            max_completion_length=1024,
            max_tool_calling_iterations=2,
            chat_template_kwargs={"enable_thinking": False},
            temperature=1.1,
            learning_rate=2e-5,
            lr_scheduler_type="cosine",
            warmup_steps=3,
            loss_type="dr_grpo",
            beta=0.0,
            epsilon_high=0.28,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=0.3,
            vllm_max_model_length=4096,
            bf16=True,
            gradient_checkpointing=True,
            eval_strategy="steps",
            eval_steps=20,
            eval_on_start=True,
            num_generations_eval=1,
            per_device_eval_batch_size=32,
            seed=0,
        ),
        train_dataset=env.dataset,
        eval_dataset=env.dataset_for("eval"),
        environment_factory=env.factory,
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":
    main()

"""AsyncGRPO on PortSim: ``vllm.sh`` generates on one GPU while this trains on another."""

import argparse

from agent_env.training.trl import AgentEnv
from peft import LoraConfig
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer


def main() -> None:
    """Trains with up to 32 rollouts in flight."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://env-host:8000", help="where the bundle is served")
    parser.add_argument("--vllm", default="http://127.0.0.1:8001", help="where vllm.sh runs")
    given = parser.parse_args()
    env = AgentEnv(given.url, split="train-standard", tool_timeout=300, reset_timeout=1800)
    trainer = AsyncGRPOTrainer(
        model="Qwen/Qwen3-4B",
        args=AsyncGRPOConfig(
            output_dir="out",
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            num_generations=8,
            max_completion_length=2048,
            max_tool_calling_iterations=8,
            chat_template_kwargs={"enable_thinking": False},
            dtype="bfloat16",
            bf16=True,
            gradient_checkpointing=True,
            vllm_server_base_url=given.vllm,
            max_inflight_tasks=32,
        ),
        train_dataset=env.dataset,
        environment_factory=env.factory,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()


if __name__ == "__main__":  # the rollout process imports this file again
    main()

#!/usr/bin/env bash
# The vLLM server of train_async.py, on the first GPU. Start the trainer with CUDA_VISIBLE_DEVICES=1.
set -euo pipefail
export CUDA_VISIBLE_DEVICES=0 VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1
exec vllm serve Qwen/Qwen3-4B --port 8001 --max-model-len 32768 \
  --logprobs-mode processed_logprobs --weight-transfer-config '{"backend":"nccl"}' \
  --enable-lora --max-lora-rank 16 --max-loras 6

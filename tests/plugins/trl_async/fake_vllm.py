"""What ``vllm serve`` is to AsyncGRPO, over HTTP: the server's facts, completions, pauses, and LoRA adapters.

It samples with transformers from the real model, with the adapter that a request names.

Run as a program it says its URL on standard output, and serves until standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_env_core.testing.asgi import Served

LORA = {"max_lora_rank": 16, "max_loras": 8}
ROOM = 16384
"""The program's ``max_model_len``: a model of bytes that answers an error with 16 calls at once still fits."""


class FakeVllm:
    """The server's state.

    Args:
        model: Folder of the model; without one it answers everything but completions.
        max_model_len: Tokens of a prompt and its completion.
        lora: Its LoRA settings; None is a server without ``--enable-lora``.
        config: More of ``vllm_config``, as ``/server_info`` tells it.
        dev: Whether ``VLLM_SERVER_DEV_MODE=1``.
        updates: Whether ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``.
        adapters: Adapters it holds from the start.
        prompt: How many tokens it finds in any prompt.
        healthy: Whether it's ready.
    """

    def __init__(
        self,
        model: str = "model",
        *,
        max_model_len: int = 2048,
        lora: dict[str, int] | None = LORA,
        config: dict[str, Any] | None = None,
        dev: bool = True,
        updates: bool = True,
        adapters: tuple[str, ...] = (),
        prompt: int = 100,
        healthy: bool = True,
    ) -> None:
        self.name, self.max_model_len, self.lora, self.dev = model, max_model_len, lora, dev
        self.config = {"weight_transfer_config": {"backend": "nccl"}, **(config or {})}
        self.config.setdefault("model_config", {"dtype": "torch.float32", "logprobs_mode": "processed_logprobs"})
        self.updates, self.prompt, self.healthy = updates, prompt, healthy
        self.adapters = dict.fromkeys(adapters, "")
        self.tokenized: list[Any] = []
        self.served: list[str] = []
        self.prompts: list[list[int]] = []
        self._model: Any = None
        self._lock = threading.Lock()
        self._running = asyncio.Event()
        self._running.set()

    def app(self) -> Starlette:
        """The ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/stats", self._stats),
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/v1/completions", self._completions, methods=["POST"]),
        ]
        if self.lora is not None:
            routes.append(Route("/v1/load_lora_adapter", self._load, methods=["POST"]))
            routes.append(Route("/v1/unload_lora_adapter", self._unload, methods=["POST"]))
        if self.dev:
            routes.append(Route("/server_info", self._info))
            routes.append(Route("/pause", self._pause, methods=["POST"]))
            routes.append(Route("/resume", self._resume, methods=["POST"]))
        return Starlette(routes=routes)

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if self.healthy else 503)

    async def _models(self, request: Request) -> Response:
        base = {"id": self.name, "max_model_len": self.max_model_len}
        return JSONResponse({"data": [base, *({"id": name, "parent": self.name} for name in self.adapters)]})

    async def _info(self, request: Request) -> Response:
        parallel = {"data_parallel_size": 1}
        config = {**self.config, "lora_config": self.lora, "parallel_config": parallel}
        return JSONResponse({"vllm_config": config, "vllm_env": {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": self.updates}})

    async def _tokenize(self, request: Request) -> Response:
        asked = await request.json()
        self.tokenized.append(asked)
        return JSONResponse({"count": self.prompt})

    async def _stats(self, request: Request) -> Response:
        return JSONResponse({"served": self.served, "prompts": self.prompts})

    async def _pause(self, request: Request) -> Response:
        self._running.clear()
        return Response()

    async def _resume(self, request: Request) -> Response:
        self._running.set()
        return Response()

    async def _load(self, request: Request) -> Response:
        asked = await request.json()
        if asked["lora_name"] in self.adapters:
            return JSONResponse({"message": f"{asked['lora_name']} has already been loaded"}, status_code=400)
        await asyncio.to_thread(self._add, asked["lora_name"], asked["lora_path"])
        return Response()

    async def _unload(self, request: Request) -> Response:
        self.adapters.pop((await request.json())["lora_name"], None)
        return Response()

    async def _completions(self, request: Request) -> Response:
        asked = await request.json()
        if asked["model"] != self.name and asked["model"] not in self.adapters:
            return JSONResponse({"message": f"no model {asked['model']}"}, status_code=404)
        if len(asked["prompt"]) + asked["max_tokens"] > self.max_model_len:
            return JSONResponse({"message": "longer than the context"}, status_code=400)
        await self._running.wait()
        self.served.append(asked["model"])
        self.prompts.append(asked["prompt"])
        ids, logprobs = await asyncio.to_thread(self._reply, asked)
        choice = {"index": 0, "text": "", "finish_reason": "stop", "token_ids": ids}
        return JSONResponse({"choices": [{**choice, "logprobs": {"token_logprobs": logprobs}}]})

    def load(self) -> None:
        """Loads the model."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(self.name, dtype="float32").eval()
        self.healthy = True

    def _add(self, name: str, path: str) -> None:
        from peft import PeftModel

        with self._lock:
            if isinstance(self._model, PeftModel):
                self._model.load_adapter(path, adapter_name=name)
            else:
                self._model = PeftModel.from_pretrained(self._model, path, adapter_name=name).eval()
        self.adapters[name] = path

    def _reply(self, asked: dict[str, Any]) -> tuple[list[int], list[float]]:
        """Samples a reply: its tokens and their log-probs."""
        import torch

        with self._lock, torch.no_grad():
            if asked["model"] in self.adapters:
                self._model.set_adapter(asked["model"])
            prompt = torch.tensor([asked["prompt"]])
            made = self._model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, top_p=1.0,
                temperature=asked["temperature"], max_new_tokens=asked["max_tokens"],
                return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        ids = made.sequences[0, prompt.shape[1] :]
        logprobs = torch.log_softmax(torch.stack(made.logits, 1)[0] / asked["temperature"], -1)
        return ids.tolist(), logprobs.gather(-1, ids[:, None])[:, 0].tolist()


async def main(model: str) -> None:
    """Serves until standard input is closed."""
    fake = FakeVllm(model, healthy=False, max_model_len=ROOM)
    served = await Served.start(fake.app())
    print(served.url, flush=True)
    await asyncio.to_thread(fake.load)
    await asyncio.to_thread(sys.stdin.read)
    await served.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

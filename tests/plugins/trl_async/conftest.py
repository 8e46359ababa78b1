"""A vLLM server's double, in this process for the checks and as a program for the trainer."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.testing.asgi import Served

HERE = Path(__file__).parent


@pytest.fixture
async def vllm() -> AsyncIterator[Callable[..., Awaitable[tuple[str, Any]]]]:
    """A function that serves a double with the settings it gets: its URL, and the double."""
    spec = importlib.util.spec_from_file_location("fake_vllm", HERE / "fake_vllm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    running: list[Served] = []

    async def serve(**settings: Any) -> tuple[str, Any]:
        fake = module.FakeVllm(**settings)
        running.append(await Served.start(fake.app()))
        return running[-1].url, fake

    yield serve
    for served in running:
        await served.close()

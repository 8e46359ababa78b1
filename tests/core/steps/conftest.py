"""A run on scripted parts: a player, a model behind a real HTTP server, and real verifiers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent_env_core.bundle import Bundle
from agent_env_core.models import ModelSettings
from agent_env_core.plugins import plugins
from agent_env_core.steps.base import declaration
from agent_env_core.steps.context import PlayedAgent, PromptRequest, RunContext, ToolUse
from agent_env_core.verifiers.pool import VerifierPool


class Conversation:
    """A run without envs.

    Attributes:
        run: The run.
        replies: What the played agent replies, in order: a text, an error, or a text and the tools it uses for it.
        asked: What it was asked.
    """

    def __init__(self, verifiers: VerifierPool, url: str) -> None:
        bundle = Bundle("b", Path("/b"), "@local/b")
        self.run = RunContext("id", bundle, None, self._play, verifiers)  # type: ignore[arg-type]  # it deploys nothing
        self.run.models = ModelSettings(url, judge_model="judge", user_model="user")
        self.run.agents["default-agent"] = PlayedAgent("default-agent")
        self.replies: list[str | Exception | tuple[str, list[ToolUse]]] = []
        self.asked: list[PromptRequest] = []

    async def _play(self, request: PromptRequest) -> str:
        self.asked.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        text, uses = reply if isinstance(reply, tuple) else (reply, [])
        request.uses.extend(uses)
        return text

    async def do(self, type_: str, **fields: Any) -> None:
        """Runs a step."""
        await plugins().step_type(type_).model_validate({"id": type_, "type": type_, **fields}).run(self.run)

    def without_settings(self) -> None:
        """Takes the host's models away, and leaves its API."""
        self.run.models = dataclasses.replace(self.run.models, judge_model=None, user_model=None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifiers() -> AsyncIterator[VerifierPool]:
    pool = VerifierPool(timeout=60.0)
    await pool.start()
    yield pool
    await pool.aclose()


@pytest.fixture
def conversation(verifiers: VerifierPool, scripted_model: Any) -> Conversation:
    return Conversation(verifiers, scripted_model.url)


@pytest.fixture(scope="session")
def faults() -> Callable[..., list[str]]:
    """What is wrong with a step, as the bundle reader is told."""

    def check(type_: str, **fields: Any) -> list[str]:
        return plugins().step_type(type_).faults({"id": "x", "type": type_, **fields})

    return check


@pytest.fixture(scope="session")
def reader_says() -> Callable[[str, dict[str, Any], list[str]], None]:
    """Checks that a step is told just so many lines, which begin so, by the check that goes with its declaration."""

    def says(type_: str, fields: dict[str, Any], beginnings: list[str]) -> None:
        check = declaration(type_).check
        assert check is not None
        found = check({"id": "x", "type": type_, **fields})
        assert len(found) == len(beginnings), found
        for line, beginning in zip(found, beginnings, strict=True):
            assert line.startswith(beginning)

    return says

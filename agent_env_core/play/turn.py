"""One turn of an agent that is played from outside: its prompt, its tools, its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tool:
    """A tool as the env's ``tools/list`` describes it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    server: str


@dataclass(frozen=True)
class ToolResult:
    """What a tool call came to: ``failure`` is "" or one of "tool", "refused", "unknown"."""

    content: tuple[Mapping[str, Any], ...]
    failure: str = ""

    @property
    def is_error(self) -> bool: ...
    @property
    def text(self) -> str: ...


class Tools:
    async def list(self) -> tuple[Tool, ...]: ...
    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout: float = 60.0) -> ToolResult: ...


class Turn:
    prompt: str
    system_prompt: str | None
    step_id: str
    agent: str
    number: int  # from 1
    of: int  # played prompts of the task

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[Tools]:
        yield Tools()

    async def end(self, response: str | None = None) -> None: ...

"""A client for chat completions: one question, one answer, one budget of time for all tries.

Own code on httpx rather than the ``openai`` package: that brings a second HTTP library, takes a second to import, and
counts its tries instead of their time, so a server that says "in two minutes" is asked again too early, or too late.
One POST is all that is needed of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import httpx

from agent_env_core.errors import ModelError, describe
from agent_env_core.models.messages import Completion, MalformedAnswer, Message, read_completion
from agent_env_core.models.refusals import refusal, retry_after, said

log = logging.getLogger(__name__)

TIMEOUT = 600.0
"""Seconds one answer may take, all tries and waits together."""
CONNECT_TIMEOUT = 10.0
MAX_BYTES = 32 * 1024 * 1024
"""The largest answer that is read."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


class ChatModel:
    """A model behind an OpenAI-compatible API: OpenAI, vLLM, and whatever else speaks ``/chat/completions``.

    Any number of :meth:`complete` may be under way at once. Use it as an async context manager, or call :meth:`aclose`.

    Args:
        model: The model's name at the server.
        base_url: The API, ``/v1`` included where the server has it.
        api_key: Sent as a bearer token; None sends none.
        params: Fields of every request, e.g. ``{"temperature": 0}``.
        key_name: Where the user sets the key; messages name it.

    Attributes:
        model: The model's name.
        base_url: The API, without a password that its URL may hold.
        tries: How many requests were made so far.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        key_name: str = "OPENAI_API_KEY",
    ) -> None:
        self.model = model
        self.tries = 0
        self._key = (api_key or "").strip()
        self._key_name = key_name
        self._params = dict(params or {})
        self._client: httpx.AsyncClient | None = None
        self._url = base_url.rstrip("/")
        try:
            url = httpx.URL(self._url)
        except httpx.InvalidURL as exc:
            raise ModelError(f"the model's base URL {base_url!r} is none: {exc}") from exc
        if url.scheme not in ("http", "https") or not url.host:
            raise ModelError(f"the model's base URL {base_url!r} must start with http:// or https:// and name a host")
        self.base_url = str(url.copy_with(userinfo=b""))
        if not (self._key.isascii() and self._key.isprintable()):
            raise ModelError(f"{key_name} holds characters that no HTTP header can carry; set it again")

    def __repr__(self) -> str:
        return f"ChatModel({self.model!r}, {self.base_url!r})"

    async def __aenter__(self) -> ChatModel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes its connections. Idempotent."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
        timeout: float = TIMEOUT,
    ) -> Completion:
        """The model's answer to a conversation.

        A server that is busy, fails or can't be reached is asked again, as often as ``timeout`` allows.

        Args:
            messages: The conversation, oldest first.
            tools: What it may call, each as ``{"type": "function", "function": {...}}``.
            tool_choice: Whether it must call one.
            response_format: The form of its answer, e.g. ``{"type": "json_object"}``.
            params: Fields of this request; they win over those of all requests.
            timeout: Seconds, all tries and waits together.

        Raises:
            ModelError: There is no answer; a :class:`~agent_env_core.errors.ContextTooLong` where the conversation is
                too long for the model.
        """
        body = {**self._params, **(params or {}), "model": self.model, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
            if tool_choice is not None:
                body["tool_choice"] = tool_choice
        if response_format is not None:
            body["response_format"] = dict(response_format)
        return await self._persist(body, time.monotonic() + timeout, timeout)

    async def check(self, timeout: float = 15.0) -> str:
        """Asks the server which models it has.

        Returns:
            A line for a person: that the model is there, or that the server doesn't list its models.

        Raises:
            ModelError: The server can't be reached or refuses the key, or the model isn't there.
        """
        models = await self.list_models(timeout)
        if models is None:
            return f"{self.model} at {self.base_url}: reached (the server doesn't list its models)"
        if self.model not in models:
            raise self._error(self._no_model(models))
        return f"{self.model} at {self.base_url}: available"

    async def list_models(self, timeout: float = 15.0) -> list[str] | None:
        """The names of the models that the server lists; None when it lists none.

        Raises:
            ModelError: It can't be reached, or refuses the key.
        """
        try:
            status, content, _ = await self._send("GET", "/models", None, timeout)
        except httpx.HTTPError as exc:
            raise self._error(
                f"can't be reached: {describe(exc)}; start its server, or mend the base URL", retryable=True
            ) from exc
        except TimeoutError as exc:
            raise self._error(f"didn't answer within {timeout:g}s", retryable=True) from exc
        if status in (401, 403):
            raise self._refused_key(status, content)
        if status >= 400:
            return None
        try:
            return [str(entry["id"]) for entry in json.loads(content)["data"]]
        except (ValueError, KeyError, TypeError):
            return None

    # -- asking

    async def _persist(self, body: dict[str, Any], deadline: float, timeout: float) -> Completion:
        """Asks until there is an answer, a refusal that stands, or no time."""
        pause = FIRST_PAUSE
        while True:
            wait: float | None = None
            try:
                left = deadline - time.monotonic()
                return await self._ask(body, max(left, 0.001))
            except _Again as exc:
                error, wait = exc.error, exc.after
            except TimeoutError as exc:
                raise self._error(f"gave no answer within {timeout:g}s", retryable=True) from exc
            if wait is None:
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the tries of many episodes
                pause = min(2 * pause, LONGEST_PAUSE)
            if time.monotonic() + wait >= deadline:
                raise self._error(f"{error}; the {timeout:g}s for an answer leave no time to ask again", retryable=True)
            log.debug("%s: asked again in %.1f s: %s", self, wait, error)
            await asyncio.sleep(wait)

    async def _ask(self, body: dict[str, Any], timeout: float) -> Completion:
        try:
            status, content, headers = await self._send("POST", "/chat/completions", body, timeout)
        except httpx.HTTPError as exc:
            raise _Again(f"can't be reached: {describe(exc)}") from exc
        if status == 200:
            try:
                return read_completion(json.loads(content))
            except ValueError as exc:
                what = str(exc) if isinstance(exc, MalformedAnswer) else "it is no JSON"
                raise self._error(f"sent what is no chat completion ({what}); is the base URL right?") from exc
        words, code = said(content)
        if status in (401, 403):
            raise self._refused_key(status, content)
        if status == 404:
            raise await self._not_found(words)
        if status == 400 and "max_completion_tokens" in words and "max_tokens" in body:
            # The newer name of the same limit; older servers know only the old one.
            body["max_completion_tokens"] = body.pop("max_tokens")
            raise _Again(words, 0.0)
        error = refusal(status, words, code)
        if error.retryable:
            raise _Again(str(error), retry_after(headers))
        raise type(error)(str(self._error(str(error))))

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout: float
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """One request: status, body and headers.

        Raises:
            TimeoutError: It took longer than ``timeout``.
            httpx.HTTPError: It failed.
        """
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
                limits=httpx.Limits(max_connections=None, keepalive_expiry=2.0),
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            )
        self.tries += 1
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode(errors="replace")
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with (
            asyncio.timeout(timeout),
            self._client.stream(method, f"{self._url}{path}", content=content, headers=headers) as response,
        ):
            received = bytearray()
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > MAX_BYTES:
                    raise self._error(f"sent more than {MAX_BYTES:,} bytes")
            return response.status_code, bytes(received), response.headers

    # -- what went wrong

    def _error(self, what: str, *, retryable: bool = False) -> ModelError:
        text = f"the model {self.model!r} at {self.base_url} {what}"
        return ModelError(text.replace(self._key, "…") if self._key else text, retryable=retryable)

    def _refused_key(self, status: int, content: bytes) -> ModelError:
        told = f"(HTTP {status}: {said(content)[0]})"
        if self._key:
            return self._error(f"refuses the API key in {self._key_name} {told}")
        return self._error(f"wants an API key, and {self._key_name} isn't set {told}")

    async def _not_found(self, words: str) -> ModelError:
        try:
            models = await self.list_models()
        except ModelError:
            models = None
        if models is not None and self.model not in models:
            return self._error(self._no_model(models))
        return self._error(f"isn't there (HTTP 404: {words}); is the base URL right? It usually ends in /v1")

    @staticmethod
    def _no_model(models: Sequence[str]) -> str:
        shown = ", ".join(models[:10]) + (f" and {len(models) - 10} more" if len(models) > 10 else "")
        return f"isn't served there; the server has: {shown or 'none'}"


class _Again(Exception):
    """A try that failed, and is worth another one: after the server's own delay, where it named one."""

    def __init__(self, error: str, after: float | None = None) -> None:
        self.error = error
        self.after = after
        super().__init__(error)

"""A client for chat completions, against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from email.utils import formatdate
from typing import Any

import pytest

from agent_env_core.errors import ContextTooLong, ModelError, episode_error
from agent_env_core.models import ChatModel, ModelSettings, Usage

SECRET = "sk-very-secret-0123"
ASK = [{"role": "user", "content": "Hello?"}]


@pytest.fixture
async def model(scripted_model: Any) -> AsyncIterator[ChatModel]:
    async with ChatModel("m", scripted_model.url, SECRET, params={"temperature": 0}) as model:
        yield model


def refusing(status: int, message: str, code: str = "", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    return status, json.dumps({"error": {"message": message, "code": code}}).encode(), headers


async def test_a_question_and_its_answer(scripted_model: Any, model: ChatModel):
    scripted_model.says("Hello.")
    answer = await model.complete(ASK, params={"max_tokens": 5})
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("Hello.", (), "stop")
    assert answer.usage == Usage(10, 2)
    assert answer.message == {"role": "assistant", "content": "Hello."}
    assert scripted_model.requests == [{"temperature": 0, "max_tokens": 5, "model": "m", "messages": ASK}]
    assert scripted_model.keys == [f"Bearer {SECRET}"]


async def test_tools_go_out_and_calls_come_back(scripted_model: Any, model: ChatModel, calling: Callable[..., Any]):
    scripted_model.says(calling(("add", {"amount": 3}), ("peek", "")))
    tool = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
    answer = await model.complete(ASK, tools=[tool], tool_choice="auto", response_format={"type": "json_object"})
    assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
        ("call-0", "add", '{"amount": 3}'),
        ("call-1", "peek", ""),
    ]
    assert answer.message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"amount": 3}'}
    (body,) = scripted_model.requests
    assert (body["tools"], body["tool_choice"]) == ([tool], "auto")
    assert body["response_format"] == {"type": "json_object"}


async def test_no_tools_are_no_field(scripted_model: Any, model: ChatModel):
    scripted_model.says("Hello.")
    await model.complete(ASK, tools=[], tool_choice="auto")
    assert scripted_model.requests[0].keys() == {"model", "messages", "temperature"}


async def test_thoughts_go_back_with_tool_calls_alone(
    scripted_model: Any, model: ChatModel, calling: Callable[..., Any]
):
    scripted_model.says({**calling(("add", {})), "reasoning_content": "hm"}, {"content": "x", "reasoning": "hm"})
    assert (await model.complete(ASK)).message["reasoning_content"] == "hm"
    assert (await model.complete(ASK)).message == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("message", "text", "arguments"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", []),
        ({"content": None}, "", []),
        ({"content": "", "tool_calls": None}, "", []),
        ({"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": "ü"}}}]}, "", ['{"a": "ü"}']),
        ({"content": "", "tool_calls": [{"function": {"name": "f"}}]}, "", [""]),
    ],
)
async def test_what_compatible_servers_send_instead(
    scripted_model: Any, model: ChatModel, message: dict[str, Any], text: str, arguments: list[str]
):
    scripted_model.says(message)
    answer = await model.complete(ASK)
    assert (answer.text, [call.arguments for call in answer.tool_calls]) == (text, arguments)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"\xff",
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 3}}]}',
        b'{"choices": [{"message": {"tool_calls": 1}}]}',
        b'{"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}',
    ],
)
async def test_what_is_no_answer_is_an_error(scripted_model: Any, model: ChatModel, body: bytes):
    scripted_model.says((200, body, {}))
    with pytest.raises(ModelError, match="no chat completion") as caught:
        await model.complete(ASK)
    assert not caught.value.retryable
    assert len(scripted_model.requests) == 1


@pytest.mark.parametrize("failure", [429, 500, 503, None])
async def test_what_passes_is_tried_again(scripted_model: Any, model: ChatModel, failure: int | None):
    scripted_model.says(failure, "Hello.")
    assert (await model.complete(ASK)).text == "Hello."
    assert model.tries == 2


@pytest.mark.parametrize("after", ["0.3", lambda: formatdate(time.time() + 1.5, usegmt=True)])
async def test_the_servers_own_delay_is_kept(scripted_model: Any, model: ChatModel, after: Any):
    scripted_model.says(
        refusing(429, "slow down", **{"Retry-After": after if isinstance(after, str) else after()}), "ok"
    )
    began = time.monotonic()
    await model.complete(ASK)
    assert time.monotonic() - began >= 0.29


async def test_a_delay_beyond_the_budget_is_not_waited_for(scripted_model: Any, model: ChatModel):
    scripted_model.says(refusing(429, "come back tomorrow", **{"Retry-After": "86400"}))
    began = time.monotonic()
    with pytest.raises(
        ModelError, match=r"HTTP 429: come back tomorrow; the 30s for an answer leave no time"
    ) as caught:
        await model.complete(ASK, timeout=30)
    assert caught.value.retryable
    assert time.monotonic() - began < 10


async def test_one_budget_holds_for_all_tries(scripted_model: Any, model: ChatModel):
    scripted_model.says(500)
    began = time.monotonic()
    with pytest.raises(ModelError, match="HTTP 500") as caught:
        await model.complete(ASK, timeout=1.0)
    assert caught.value.retryable
    assert model.tries > 1
    assert time.monotonic() - began < 10


async def test_a_server_that_hangs_is_given_up(scripted_model: Any, model: ChatModel):
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(body: dict[str, Any]) -> str:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return "late"

    scripted_model.says(hang)
    with pytest.raises(ModelError, match=r"gave no answer within 0\.2s") as caught:
        await model.complete(ASK, timeout=0.2)
    assert caught.value.retryable
    release.set()


async def test_nobody_listens():
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port, and nobody answers
        taken.bind(("127.0.0.1", 0))
        async with ChatModel("m", f"http://127.0.0.1:{taken.getsockname()[1]}/v1") as model:
            with pytest.raises(ModelError, match=r"can't be reached: .*; start its server, or mend the base URL"):
                await model.check()
            with pytest.raises(ModelError, match="can't be reached") as caught:
                await model.complete(ASK, timeout=0.8)
            assert caught.value.retryable


@pytest.mark.parametrize("status", [400, 402, 405, 422])
async def test_what_stays_is_not_tried_again(scripted_model: Any, model: ChatModel, status: int):
    scripted_model.says(refusing(status, "no such thing"))
    with pytest.raises(ModelError, match=rf"HTTP {status}: no such thing") as caught:
        await model.complete(ASK)
    assert (caught.value.retryable, model.tries) == (False, 1)


async def test_a_quota_that_is_used_up_stays(scripted_model: Any, model: ChatModel):
    scripted_model.says(refusing(429, "pay first", "insufficient_quota"))
    with pytest.raises(ModelError, match="quota is used up") as caught:
        await model.complete(ASK)
    assert (caught.value.retryable, model.tries) == (False, 1)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("anything", "context_length_exceeded"),
        ("This model's maximum context length is 4096 tokens. However, you requested 5000 tokens", ""),
        ("the request exceeds the available context size", ""),
        ("prompt is too long: 210000 tokens > 200000 maximum", ""),
    ],
)
async def test_a_conversation_that_is_too_long(scripted_model: Any, model: ChatModel, words: str, code: str):
    scripted_model.says(refusing(400, words, code))
    with pytest.raises(ContextTooLong, match="longer than the model can read"):
        await model.complete(ASK)


async def test_a_refused_key_names_its_variable_and_never_itself(scripted_model: Any, caplog: Any):
    caplog.set_level(logging.DEBUG)
    scripted_model.says(refusing(401, f"Incorrect API key provided: {SECRET}"))
    async with ChatModel("m", scripted_model.url, SECRET, key_name="MY_KEY") as model:
        with pytest.raises(ModelError, match="refuses the API key in MY_KEY") as caught:
            await model.complete(ASK)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(model)
    assert SECRET not in caplog.text


async def test_a_missing_key_is_told_as_such(scripted_model: Any):
    scripted_model.says(refusing(401, "who are you?"))
    async with ChatModel("m", scripted_model.url) as model:
        with pytest.raises(ModelError, match="wants an API key, and OPENAI_API_KEY isn't set"):
            await model.complete(ASK)
    assert scripted_model.keys == [None]


async def test_a_model_that_is_not_there_is_told_with_those_that_are(scripted_model: Any):
    scripted_model.models = ["qwen", "llama"]
    scripted_model.says(refusing(404, "no such model"))
    async with ChatModel("m", scripted_model.url) as model:
        for ask in (model.complete(ASK), model.check()):
            with pytest.raises(ModelError, match=r"'m' at .* isn't served there; the server has: qwen, llama"):
                await ask


async def test_a_wrong_address_is_told_as_such(scripted_model: Any):
    scripted_model.models = None
    scripted_model.says(404)
    async with ChatModel("m", scripted_model.url) as model:
        with pytest.raises(ModelError, match=r"usually ends in /v1"):
            await model.complete(ASK)


async def test_a_check(scripted_model: Any, model: ChatModel):
    assert await model.check() == f"m at {scripted_model.url}: available"
    scripted_model.models = None
    assert await model.check() == f"m at {scripted_model.url}: reached (the server doesn't list its models)"
    assert scripted_model.requests == []


async def test_the_newer_name_of_a_limit_is_learned(scripted_model: Any, model: ChatModel):
    no = refusing(400, "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
    scripted_model.says(no, "ok")
    assert (await model.complete(ASK, params={"max_tokens": 7})).text == "ok"
    first, second = scripted_model.requests
    assert (first["max_tokens"], second["max_completion_tokens"]) == (7, 7)
    assert "max_tokens" not in second


@pytest.mark.parametrize("url", ["", "ftp://x/v1", "localhost:8000/v1", "http://", "http://[::1"])
def test_an_address_that_is_none(url: str):
    with pytest.raises(ModelError, match="base URL"):
        ChatModel("m", url)


def test_a_key_that_no_header_carries():
    with pytest.raises(ModelError, match="MY_KEY holds characters") as caught:
        ChatModel("m", "http://x/v1", "sk\nü", key_name="MY_KEY")
    assert "sk" not in str(caught.value).replace("MY_KEY", "")


def test_a_password_in_an_address_is_not_shown():
    model = ChatModel("m", "http://me:hidden@x:1/v1/")
    assert model.base_url == "http://x:1/v1"
    assert "hidden" not in repr(model)


def test_cancelling_a_wait_is_at_once(scripted_model: Any):
    async def scenario() -> None:
        scripted_model.says(refusing(503, "later", **{"Retry-After": "60"}))
        async with ChatModel("m", scripted_model.url) as model:
            asking = asyncio.create_task(model.complete(ASK))
            while not scripted_model.requests:  # noqa: ASYNC110 - the server's thread tells nobody
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(scenario())


def test_a_models_failure_is_the_phases():
    assert episode_error(ModelError("gone", retryable=True), "verify").retryable
    assert episode_error(ContextTooLong("long"), "turn").phase == "turn"


def test_only_the_users_own_api_is_told_the_users_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", SECRET)
    settings = ModelSettings(base_url="https://mine.example/v1", api_key_env="MY_KEY")
    assert settings.open("m")._key == SECRET
    assert settings.open("m", base_url="https://mine.example/v2")._key == SECRET
    for other in ("https://evil.example/v1", "http://mine.example/v1", "https://mine.example:8443/v1"):
        assert settings.open("m", base_url=other)._key == ""
    assert SECRET not in repr(settings)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("AGENT_ENV_JUDGE_MODEL", "judge")
    monkeypatch.setenv("AGENT_ENV_USER_MODEL", "")
    settings = ModelSettings.from_env()
    assert (settings.base_url, settings.judge_model, settings.user_model) == ("http://127.0.0.1:1/v1", "judge", None)
    with pytest.raises(ModelError, match="AGENT_ENV_JUDGE_MODEL"):
        settings.open(None)

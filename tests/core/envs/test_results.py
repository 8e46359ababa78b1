from __future__ import annotations

from typing import Any

import pytest

from agent_env_core.envs import results
from agent_env_core.envs.results import MAX_TEXT, failed, read_result

PICTURE = {"type": "image", "data": "x" * 100, "mimeType": "image/png"}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_result_as_it_comes():
    result = read_result({"content": [text("a"), PICTURE, text("b")], "isError": False, "structuredContent": {"x": 1}})
    assert result.content == (text("a"), PICTURE, text("b"))
    assert (result.text, result.is_error, result.failure) == ("a\nb", False, "")


@pytest.mark.parametrize(("flag", "failure"), [(True, "tool"), (False, ""), (None, ""), ("yes", "")])
def test_a_tool_that_failed(flag: Any, failure: str):
    assert read_result({"content": [text("no")], "isError": flag}).failure == failure


def test_no_content_is_an_empty_text():
    assert read_result({}).text == ""


def test_long_texts_are_cut_and_say_so():
    result = read_result({"content": [text("ü" * MAX_TEXT), text("more")]})
    assert result.text.startswith("ü" * (MAX_TEXT // 2) + "\n[")
    assert result.text.splitlines()[1] == f"[{MAX_TEXT} bytes of text left out]"
    assert result.text.splitlines()[-1] == "[4 bytes of text left out]"


def test_a_cut_in_the_middle_of_a_character_drops_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "MAX_TEXT", 3)
    assert failed("tool", "üü").text == "ü\n[1 bytes of text left out]"


def test_pictures_beyond_the_limit_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "MAX_OTHER", 200)
    result = read_result({"content": [PICTURE, PICTURE]})
    assert result.content[0] == PICTURE
    assert result.text == "[image of 154 bytes left out]"


@pytest.mark.parametrize(
    "content", ["text", [1], [{"text": "no type"}], [{"type": "text"}], [{"type": "text", "text": 3}]]
)
def test_what_is_no_result(content: Any):
    with pytest.raises(ValueError, match="content"):
        read_result({"content": content})


def test_half_a_surrogate_pair_does_not_reach_the_wire():
    result = read_result({"content": [{"type": "text", "text": "a \ud83d b"}]})
    assert result.text.encode() == b"a ? b"

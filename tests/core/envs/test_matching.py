from __future__ import annotations

from typing import Any

import pytest

from agent_env_core.envs.matching import (
    call_facts,
    condition_fault,
    fill,
    holds,
    look_up,
    path_fault,
    template_faults,
)

FACTS = call_facts(
    {"berth": 3, "ships": ["a", "b"], "note": "", "a.b": 1},
    '{"watch": 2, "ships": [{"name": "Carlota"}], "deep": {"er": null}, "done": false}',
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("result.watch", 2),
        ("result.ships[0].name", "Carlota"),
        ("result.ships[1].name", None),
        ("result.ships[*]", [{"name": "Carlota"}]),
        ("result.deep.er", None),
        ("result.watch.further", None),
        ("result.watch[0]", None),
        ("args.berth", 3),
        ("args.ships[1]", "b"),
        ("berth", 3),  # a bare name is an argument
        ("a.b", 1),  # also one with a dot in it
        ("ships[0]", "a"),
        ("watch", None),
        ("args", {"berth": 3, "ships": ["a", "b"], "note": "", "a.b": 1}),
    ],
)
def test_paths(path: str, found: Any):
    assert look_up(FACTS, path) == found


@pytest.mark.parametrize(
    ("text", "result"), [("", None), ("plain", "plain"), ("[1]", [1]), ("[" * 100_000, "[" * 100_000)]
)
def test_a_result_is_json_where_it_is_some(text: str, result: Any):
    assert call_facts({}, text)["result"] == result


def test_no_path_leads_into_a_result_that_is_no_object():
    assert look_up(call_facts({}, "plain"), "result.watch") is None
    assert look_up(call_facts({}, "plain"), "result") == "plain"


@pytest.mark.parametrize(
    ("condition", "value", "met"),
    [
        ({"equals": 2}, 2, True),
        ({"equals": 2}, 2.0, True),
        ({"equals": 2}, "2", False),
        ({"equals": 1}, True, False),  # in JSON 1 is not true
        ({"equals": True}, 1, False),
        ({"equals": True}, True, True),
        ({"equals": None}, None, True),
        ({"equals": [1, {"a": 2}]}, [1, {"a": 2}], True),
        ({"regex": "^wat"}, "watch", True),
        ({"regex": "tch$"}, "watch 2", False),
        ({"regex": '"a": 1'}, {"a": 1}, True),  # what is no text is matched as JSON
        ({"regex": "^null$"}, None, True),
        ({"exists": True}, 0, True),
        ({"exists": True}, False, True),
        ({"exists": True}, "", False),
        ({"exists": True}, [], False),
        ({"exists": True}, None, False),
        ({"exists": False}, None, True),
        ({"exists": False}, "x", False),
    ],
)
def test_conditions(condition: dict[str, Any], value: Any, met: bool):
    assert condition_fault(condition) == ""
    assert holds(condition, value) is met


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("x", "must be an object with one of equals, regex, exists, not 'x'"),
        ({}, "must be an object with one of"),
        ({"equals": 1, "exists": True}, "must be an object with one of"),
        ({"exists": "yes"}, "exists must be true or false, not 'yes'"),
        ({"regex": "("}, "regex '(' can't be used"),
        ({"regex": 3}, "regex 3 can't be used"),
    ],
)
def test_what_is_no_condition(condition: Any, said: str):
    assert condition_fault(condition).startswith(said)


@pytest.mark.parametrize("path", ["", "a..b", "a.", "a[x]", "a b", "a[0"])
def test_what_is_no_path(path: str):
    assert "is no path" in path_fault(path)


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("${result.watch}", 2),  # the value itself
        ("watch ${result.watch} of ${args.berth}", "watch 2 of 3"),
        ({"x": "${result.ships}", "y": ["${args.ships[0]}"]}, {"x": [{"name": "Carlota"}], "y": ["a"]}),
        ({"x": "${args.gone?}", "y": 1}, {"y": 1}),  # left out, so that the tool's own default applies
        (["${args.gone?}", 1], [1]),
        ("say: ${args.gone?}.", "say: ."),
        ("${HOME} and $${x}", "${HOME} and $${x}"),
        ("ships ${args.ships}", 'ships ["a", "b"]'),
        (3, 3),
    ],
)
def test_filling_in(value: Any, filled: Any):
    assert not list(template_faults(value))
    assert fill(value, FACTS) == filled


def test_a_placeholder_that_leads_to_nothing_is_an_error():
    with pytest.raises(LookupError, match=r"\$\{args.gone\} leads to nothing in this call"):
        fill({"x": ["${args.gone}"]}, FACTS)


@pytest.mark.parametrize(
    "text", ["${args.x", "${ args.x }", "${args.x!}", "${args.a..b}", "${result .x}", "${args.a b}"]
)
def test_placeholders_that_could_not_be_filled_in_are_told(text: str):
    assert list(template_faults({"deep": [text]}))

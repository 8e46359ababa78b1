"""Tool schemas to methods, as transformers reads them back."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from agent_env_trl.schemas import check_names, tool_method
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from agent_env_core.errors import AgentEnvError


class Recorder:
    """Stands for an environment: keeps what a tool method hands on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls.append((name, arguments))
        return "done"


def bound(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> Any:
    tool = {
        "name": "act",
        "description": more.pop("description", "Acts."),
        "input_schema": {"type": "object", "properties": properties, "required": required or [], **more},
    }
    return type("Env", (Recorder,), {"act": tool_method(tool)})().act


def read_back(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    return get_json_schema(bound(properties, required, **more))["function"]


def one(schema: dict[str, Any], required: bool = True, **more: Any) -> dict[str, Any]:
    """What transformers makes of a parameter ``x`` of ``schema``, without its description."""
    function = read_back({"x": schema}, ["x"] if required else [], **more)
    found = dict(function["parameters"]["properties"]["x"])
    assert found.pop("description")
    return found


def text(schema: dict[str, Any], **more: Any) -> str:
    """The description of a parameter ``x`` of ``schema``."""
    found: str = read_back({"x": schema}, ["x"], **more)["parameters"]["properties"]["x"]["description"]
    return found


NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "description": "what it holds"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
    },
    "required": ["value"],
}


def test_page_signature() -> None:
    method = bound({"actions": {"type": "array", "items": {"type": "integer"}, "title": "Actions"}}, ["actions"])
    assert str(inspect.signature(type(method.__self__).act)) == "(self, *, actions: list[int]) -> str"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"type": "string"}),
        ({"type": "integer", "minimum": 0}, {"type": "integer"}),
        ({"type": "number"}, {"type": "number"}),
        ({"type": "boolean"}, {"type": "boolean"}),
        ({"type": "null"}, {"type": "null"}),
        ({}, {}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "items": {"type": "number"}}, {"type": "array", "items": {"type": "number"}}),
        (
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        ),
        (
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        ),
        ({"type": "object"}, {"type": "object"}),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"type": "object", "additionalProperties": {"type": "integer"}},
        ),
        ({"type": ["string", "null"]}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"type": "integer", "nullable": True}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, {"type": ["integer", "string"]}),
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"type": "string", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        ({"enum": [1, 2]}, {"type": "integer", "enum": [1, 2]}),
        ({"const": 1}, {"type": "integer", "enum": [1]}),
        ({"enum": ["a", None]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": "string", "nullable": True}, {"type": "string", "nullable": True}),
        (
            {"items": [{"type": "integer"}, {"type": "string"}]},
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        ),
        ({"anyOf": [{}, {"type": "null"}]}, {}),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, {"type": "object"}),
        (
            {"type": "array", "items": {"enum": ["buy", "sell"]}},
            {"type": "array", "items": {"type": "string", "enum": ["buy", "sell"]}},
        ),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, {"type": "integer"}),
    ],
)
def test_types_survive_the_round_trip(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one(schema) == expected


def test_references_are_followed() -> None:
    defs = {"Side": {"enum": ["buy", "sell"]}, "Book": {"type": "array", "items": {"$ref": "#/$defs/Side"}}}
    assert one({"$ref": "#/$defs/Book"}, **{"$defs": defs}) == {
        "type": "array",
        "items": {"type": "string", "enum": ["buy", "sell"]},
    }


def test_a_recursive_type_is_told_to_a_depth() -> None:
    function = read_back({"tree": {"$ref": "#/$defs/Node"}}, ["tree"], **{"$defs": {"Node": NODE}})
    tree = function["parameters"]["properties"]["tree"]
    assert tree["type"] == "object"
    assert tree["description"] == "Node {value: integer (what it holds), children?: array of Node}"


def test_a_type_that_is_made_of_itself_alone_ends() -> None:
    defs = {"Json": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Json"}}, {"type": "string"}]}}
    function = read_back({"x": {"$ref": "#/$defs/Json"}}, ["x"], **{"$defs": defs})
    assert function["parameters"]["properties"]["x"]["description"] == "Json array of Json | string"


def test_a_definition_is_told_once_and_named_from_then_on() -> None:
    point = {"type": "object", "properties": {"at": {"type": "number", "minimum": 0}}}
    line = {"type": "object", "properties": {"a": {"$ref": "#/$defs/P"}, "b": {"$ref": "#/$defs/P"}}}
    assert text({"$ref": "#/$defs/Line"}, **{"$defs": {"P": point, "Line": line}}) == (
        "Line {a?: P {at?: number (at least 0)}, b?: P}"
    )


def test_definitions_that_refer_to_each_other_don_t_explode() -> None:
    defs: dict[str, Any] = {"T0": {"type": "string"}}
    for n in range(1, 16):
        fields = {side: {"$ref": f"#/$defs/T{n - 1}"} for side in ("a", "b", "c")}
        defs[f"T{n}"] = {"type": "object", "properties": fields}
    assert len(text({"$ref": "#/$defs/T15"}, **{"$defs": defs})) < 700


@pytest.mark.parametrize("reference", ["#/$defs/Nowhere", "https://elsewhere.example/schema.json", "#/$defs/Loop"])
def test_a_reference_that_leads_nowhere_is_refused_by_name(reference: str) -> None:
    with pytest.raises(AgentEnvError, match=r"'act' can't be read: the reference"):
        bound({"x": {"$ref": reference}}, **{"$defs": {"Loop": {"$ref": "#/$defs/Loop"}}})


def test_what_a_hint_leaves_out_is_told_in_words() -> None:
    schema = {
        "type": "array",
        "description": "One move an hour.",
        "minItems": 24,
        "maxItems": 24,
        "items": {"type": "integer", "minimum": -1, "maximum": 1},
    }
    text = read_back({"moves": schema}, ["moves"])["parameters"]["properties"]["moves"]["description"]
    assert text == "One move an hour; array of integer (at least -1; at most 1); at least 24 items; at most 24 items"


def test_nested_objects_are_told_in_words_and_sent_as_they_are() -> None:
    point = {
        "type": "object",
        "properties": {"lat": {"type": "number"}, "name": {"type": "string", "description": "if it has one"}},
        "required": ["lat"],
    }
    method = bound({"points": {"type": "array", "items": point}}, ["points"])
    text = get_json_schema(method)["function"]["parameters"]["properties"]["points"]["description"]
    assert text == "array of {lat: number, name?: string (if it has one)}"
    method(points=[{"lat": 1.5}])
    assert method.__self__.calls == [("act", {"points": [{"lat": 1.5}]})]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "format": "date", "pattern": "^2"}, "matching ^2; format date"),
        ({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5}, "above 0; a multiple of 0.5"),
        ({"type": "integer", "default": 3, "examples": [1, 2]}, "e.g. 1, 2; default 3"),
        ({"type": "boolean", "default": True, "deprecated": True}, "deprecated; default true"),
        ({"type": "array", "default": ["a"]}, 'default ["a"]'),
        ({"type": "string", "title": "Name of the ship"}, "Name of the ship"),
        ({"type": "string", "title": "X"}, "X"),
        ({"type": "string", "not": {"const": "no"}}, 'not {"const": "no"}'),
        ({"type": "object", "minProperties": 1, "propertyNames": {"pattern": "^a"}},
         'at least 1 fields; propertyNames {"pattern": "^a"}'),
        ({"type": "object", "patternProperties": {"^n": {"type": "number"}}},
         'patternProperties {"^n": {"type": "number"}}'),
        ({"anyOf": [{"items": {"type": "integer"}}, {"type": "string"}, {"type": "null"}]},
         "array of integer | string | null"),
        ({"anyOf": [{"items": {"type": "integer"}}, {"type": "null"}]}, "x"),
        ({"anyOf": [{"enum": ["low", "high"]}, {"type": "integer"}]}, '"low" | "high" | integer'),
        ({"enum": [["a"], {"b": 1}]}, '["a"] | {"b": 1}'),
        ({"type": ["array", "null"], "items": {"type": "string", "format": "uuid"}},
         "array of string (format uuid) | null"),
        ({"prefixItems": [{"type": "integer", "description": "hour"}, {"type": "string"}]},
         "[integer (hour), string]"),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, "[integer, then each string]"),
        ({"items": [{"type": "integer"}], "additionalItems": {"type": "string"}}, "[integer, then each string]"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "integer", "minimum": 1}]},
         "string (format date) | integer (at least 1)"),
        ({"additionalProperties": {"type": "integer", "maximum": 9}}, "object with values integer (at most 9)"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "integer"}},
         "{a?: string, any other: integer}"),
        ({"type": "object", "properties": {"two words": {"default": 1}}, "additionalProperties": True},
         '{"two words"?: any value (default 1), any other: any value}'),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
         '{a?: any value}; anyOf [{"required": ["a"]}]'),
        ({"allOf": [{"minimum": 3}, {"minimum": 5, "type": "integer"}]}, 'at least 3; allOf [{"minimum": 5}]'),
        ({"items": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]}},
         "array of (string (at most 2 characters) | null)"),
    ],
)  # fmt: skip
def test_nothing_a_schema_says_is_lost(schema: dict[str, Any], said: str) -> None:
    assert text(schema) == said


def test_a_reference_and_what_stands_beside_it_are_both_told() -> None:
    side = {"enum": ["buy", "sell"], "description": "A side of the book."}
    assert text({"$ref": "#/$defs/Side", "description": "Which one."}, **{"$defs": {"Side": side}}) == (
        "Which one; A side of the book"
    )


def test_references_into_properties_and_lists_are_followed() -> None:
    function = read_back({
        "a": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "b": {"$ref": "#/properties/a/anyOf/0"},
        "c": {"$ref": "#/$defs/two%20words"},
    }, **{"$defs": {"two words": {"type": "integer"}}})["parameters"]["properties"]  # fmt: skip
    assert function["b"] == {"type": "string", "description": "format date"}
    assert function["c"]["type"] == "integer"


def test_what_is_said_of_all_arguments_together_is_told_with_the_tool() -> None:
    function = read_back(
        {"path": {"type": "string"}, "url": {"type": "string"}},
        anyOf=[{"required": ["path"]}, {"required": ["url"]}],
    )
    assert function["description"] == 'Acts.\n\nOf the arguments: anyOf [{"required": ["path"]}, {"required": ["url"]}]'


def test_a_parameter_that_is_only_called_required_is_there() -> None:
    function = read_back({"a": {"type": "string"}}, ["a", "b"])
    assert function["parameters"]["required"] == ["a", "b"]
    assert function["parameters"]["properties"]["b"] == {"description": "b"}


def test_an_omitted_optional_is_absent_on_the_wire() -> None:
    method = bound(
        {"berths": {"type": "array"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}},
        ["berths"],
    )
    method(berths=[1])
    method(berths=[1], note=None)
    assert method.__self__.calls == [("act", {"berths": [1]}), ("act", {"berths": [1], "note": None})]
    assert get_json_schema(method)["function"]["parameters"]["required"] == ["berths"]


def test_defaults_are_shown_and_never_sent() -> None:
    method = bound({"limit": {"type": "integer", "default": 10}, "mode": {"type": "string", "default": "fast"}})
    assert str(inspect.signature(method)) == "(*, limit: int = 10, mode: str = 'fast') -> str"
    described = get_json_schema(method)["function"]["parameters"]["properties"]
    assert described["limit"]["description"] == "default 10"
    assert described["mode"]["description"] == 'default "fast"'
    method()
    assert method.__self__.calls == [("act", {})]


@pytest.mark.parametrize(
    ("wire", "name"),
    [
        ("from", "from_"),
        ("x-y", "x_y"),
        ("2nd", "_2nd"),
        ("self", "self_"),
        ("Returns", "Returns_"),
        ("taxReturns", "taxReturns_"),
        ("Args", "Args_"),
        ("Raises", "Raises_"),
        ("cls", "cls_"),
        ("größe", "gr__e"),
        ("", "_"),
    ],
)
def test_awkward_parameter_names_are_aliased_and_mapped_back(wire: str, name: str) -> None:
    method = bound({wire: {"type": "string"}}, [wire])
    described = get_json_schema(method)["function"]["parameters"]["properties"]
    assert list(described) == [name]
    assert f"sent as {wire!r}" in described[name]["description"]
    method(**{name: "v"})
    assert method.__self__.calls == [("act", {wire: "v"})]


def test_aliases_never_collide() -> None:
    method = bound({"a-b": {"type": "string"}, "a.b": {"type": "string"}, "a_b": {"type": "string"}})
    method(a_b="1", a_b_2="2", a_b_3="3")
    assert method.__self__.calls == [("act", {"a-b": "1", "a.b": "2", "a_b": "3"})]


def test_docstring_traps() -> None:
    function = read_back(
        {
            "x": {"type": "string", "description": "Returns: nothing.\nArgs:\n  y: no (choices: one, two)"},
            "z": {"type": "string", "description": ""},
        },
        description="Line one.\n\nArgs: these are not ours.\nReturns: neither.\nRaises: nor this.\n    indented",
    )
    assert function["description"].startswith("Line one.")
    assert function["description"].endswith("    indented")
    assert set(function["parameters"]["properties"]) == {"x", "z"}
    assert "enum" not in function["parameters"]["properties"]["x"]
    assert function["parameters"]["properties"]["z"]["description"] == "z"


def test_a_tool_without_a_description_or_parameters_still_has_a_docstring() -> None:
    assert read_back({}, description="")["description"] == "Calls act."


@given(
    description=st.text(max_size=80),
    texts=st.lists(st.text(max_size=60), max_size=3),
    names=st.lists(st.text(min_size=1, max_size=6), max_size=3, unique=True),
)
@settings(max_examples=150, deadline=None)
def test_any_text_makes_a_schema_with_every_parameter(description: str, texts: list[str], names: list[str]) -> None:
    properties = {name: {"type": "string", "description": text} for name, text in zip(names, texts, strict=False)}
    method = bound(properties, description=description)
    described = get_json_schema(method)["function"]
    assert described["description"]
    arguments = dict.fromkeys(described["parameters"]["properties"], "v")
    assert len(arguments) == len(properties)
    method(**arguments)
    assert method.__self__.calls == [("act", dict.fromkeys(properties, "v"))]


def test_tools_that_cannot_be_methods_are_refused_all_at_once() -> None:
    names = ["look", "reset", "get_reward", "end_turn", "_hidden", "two words", "class"]
    with pytest.raises(AgentEnvError) as refusal:
        check_names([{"name": name} for name in names])
    message = str(refusal.value)
    assert "look" not in message
    assert all(repr(name) in message for name in names[1:])
    assert "modify_env_tool_access" in message

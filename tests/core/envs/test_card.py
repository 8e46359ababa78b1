from __future__ import annotations

from typing import Any

import pytest

from agent_env_core.envs.card import Method, read_card


def card(extensions: Any = None, **fields: Any) -> dict[str, Any]:
    return {"name": "quay", "capabilities": {"extensions": extensions}, **fields}


def extension(params: Any, uri: str = "urn:x/v1") -> dict[str, Any]:
    return {"uri": uri, "params": params}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"endpoint": "/ext", "methods": {"load": {}}}, Method("load", "POST", "/ext")),
        ({"endpoint": "/ext", "methods": {"load": {"method": "put"}}}, Method("load", "PUT", "/ext")),
        ({"methods": {"load": {"endpoint": "/own", "method": "GET"}}}, Method("load", "GET", "/own")),
        ({"endpoint": "/ext", "methods": {"b": {"endpoint": "/b"}, "a": {}}}, Method("b", "POST", "/b")),
        ({"endpoint": "/ext", "methods": {}}, Method("", "POST", "/ext")),
        ({"endpoint": "/ext"}, Method("", "POST", "/ext")),
        ({"methods": {"load": {}}}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_first_method_of_an_extension_is_called(params: Any, expected: Method | None):
    assert read_card(card([extension(params)])).first_method("urn:x/v1") == expected


def test_what_a_card_leaves_out():
    plain = read_card({"name": "quay"})
    assert (plain.mcp_path, plain.extensions, plain.children) == ("/mcp", {}, ())
    assert plain.first_method("urn:x/v1") is None
    assert plain.servers == (plain,)
    assert plain.server("quay") is plain
    assert plain.server("other") is None


def test_where_the_tools_are():
    interfaces = [{"url": "/a2a", "transport": "a2a"}, {"url": "/tools/mcp", "transport": "mcp"}]
    assert read_card(card(additionalInterfaces=interfaces)).mcp_path == "/tools/mcp"


def test_servers_behind_a_composed_env():
    made = read_card(card(children_environments=[card(name="a"), card([extension({"endpoint": "/e"})], name="b")]))
    assert [server.name for server in made.servers] == ["a", "b"]
    found = made.server("b")
    assert found is not None
    assert found.first_method("urn:x/v1") == Method("", "POST", "/e")
    assert made.server("quay") is None


@pytest.mark.parametrize("capabilities", [None, {}, {"extensions": None}, {"extensions": "x"}, {"extensions": [1, {}]}])
def test_odd_capabilities_are_none(capabilities: Any):
    assert read_card({"name": "quay", "capabilities": capabilities}).extensions == {}


@pytest.mark.parametrize(("data", "said"), [([], "list, not an object"), ({}, "name is None"), ({"name": 3}, "is 3")])
def test_what_is_no_card(data: Any, said: str):
    with pytest.raises(ValueError, match=said):
        read_card(data)


@pytest.mark.parametrize(
    ("capabilities", "served"),
    [
        ({}, {"data/reset", "data/add", "data/get"}),  # an old server says nothing and has all
        ({"operations": None}, {"data/reset", "data/add", "data/get"}),
        ({"operations": []}, set()),
        ({"operations": ["data/get", 3, {}]}, {"data/get"}),
    ],
)
def test_what_of_the_data_plane_is_served(capabilities: Any, served: set[str]):
    assert read_card({"name": "quay", "capabilities": capabilities}).operations == served

"""Tools as public MCP servers list them: whatever their schemas say reaches the model, and arguments arrive as sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env_trl.schemas import check_names, tool_method
from transformers.utils import get_json_schema


class Environment:
    """Keeps what a tool method hands on."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def _call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls.append((name, arguments))
        return "done"


def leaves(schema: Any, word: str = "") -> Iterator[str]:
    """Every fact a schema states, as it has to turn up in what the model is shown."""
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            for name, part in value.items():
                yield from [name.replace("-", "_")] if key == "properties" else []
                yield from leaves(part)
        elif key in ("anyOf", "oneOf"):
            for part in value:
                yield from leaves(part)
        elif key in ("items", "additionalProperties"):
            yield from leaves(value)
        elif key == "enum":
            yield from map(json.dumps, value)
        elif key == "description":
            yield value.rstrip(" .")
        elif key == "type":
            yield from value if isinstance(value, list) else [value]
        elif key not in ("title", "$schema", "$ref", "required") and value is not None:
            yield value if isinstance(value, str) else json.dumps(value)


SERVERS = json.loads((Path(__file__).parent / "mcp_servers.json").read_text("utf-8"))
PUBLIC = [(server, tool) for server, tools in SERVERS.items() if server != "about" for tool in tools]


@pytest.mark.parametrize(("server", "tool"), PUBLIC, ids=[f"{server}:{tool['name']}" for server, tool in PUBLIC])
def test_tools_of_public_servers_are_shown_whole(server: str, tool: dict[str, Any]) -> None:
    check_names([tool])
    method = getattr(type("Env", (Environment,), {tool["name"]: tool_method(tool)})(), tool["name"])
    shown = get_json_schema(method)["function"]
    assert shown["name"] == tool["name"]
    schema = tool["input_schema"]
    names = [name.replace("-", "_") for name in schema["properties"]]
    assert list(shown["parameters"]["properties"]) == names
    required = [name.replace("-", "_") for name in schema["properties"] if name in schema.get("required", ())]
    assert shown["parameters"].get("required", []) == required
    words = json.dumps(shown, ensure_ascii=False).replace('\\"', '"')
    assert [fact for fact in leaves(schema) if fact not in words] == []
    method(**dict.fromkeys(names, 0))
    assert method.__self__.calls == [(tool["name"], dict.fromkeys(schema["properties"], 0))]

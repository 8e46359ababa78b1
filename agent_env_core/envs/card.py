"""The card an env's server shows of itself: its name, where its tools are, its extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CARD_PATH = "/.well-known/agent-env.json"
MCP_PATH = "/mcp"
RPC_PATH = "/agentenv"
"""Where the data plane is, on every server."""
ALL_OPERATIONS = frozenset({"data/reset", "data/add", "data/get"})


@dataclass(frozen=True)
class Method:
    """One operation of an extension: an HTTP verb and a path relative to the env's address."""

    name: str
    verb: str
    endpoint: str


@dataclass(frozen=True)
class Card:
    """A card, read.

    Attributes:
        name: The server's registered name.
        mcp_path: Where its MCP endpoint is, relative to the env's address.
        extensions: URI to the methods it lists, in its order.
        children: Cards of the servers behind a composed env; empty for an ordinary one.
        operations: The data-plane methods it serves; a card that doesn't say is of a server that has all three.
    """

    name: str
    mcp_path: str
    extensions: Mapping[str, tuple[Method, ...]]
    children: tuple[Card, ...] = ()
    operations: frozenset[str] = ALL_OPERATIONS

    @property
    def servers(self) -> tuple[Card, ...]:
        """The servers that directives can address: its children, or itself where it has none."""
        return self.children or (self,)

    def server(self, name: str) -> Card | None:
        """The server registered under ``name``."""
        return next((card for card in self.servers if card.name == name), None)

    def first_method(self, uri: str) -> Method | None:
        """The method that a directive on ``uri`` calls: the first one listed."""
        return next(iter(self.extensions.get(uri, ())), None)


def read_card(data: Any) -> Card:
    """Reads a card's JSON.

    Raises:
        ValueError: It is no card; the message says what is missing.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"the card is {type(data).__name__}, not an object")
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"the card's name is {name!r}, not a text")
    capabilities = data.get("capabilities")
    listed = capabilities.get("extensions") if isinstance(capabilities, Mapping) else None
    extensions = {
        item["uri"]: _methods(item.get("params")) for item in _objects(listed) if isinstance(item.get("uri"), str)
    }
    mcp_path = next(
        (
            item["url"]
            for item in _objects(data.get("additionalInterfaces"))
            if item.get("transport") == "mcp" and isinstance(item.get("url"), str)
        ),
        MCP_PATH,
    )
    children = tuple(read_card(child) for child in _objects(data.get("children_environments")))
    served = capabilities.get("operations") if isinstance(capabilities, Mapping) else None
    operations = frozenset(filter(_is_text, served)) if isinstance(served, list) else ALL_OPERATIONS
    return Card(name, mcp_path, extensions, children, operations)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _methods(params: Any) -> tuple[Method, ...]:
    """The methods of an extension that can be called; one that lists none has its own endpoint, by POST."""
    if not isinstance(params, Mapping):
        return ()
    shared = params.get("endpoint")
    listed = params.get("methods")
    if not isinstance(listed, Mapping) or not listed:
        listed = {"": {}}
    found = []
    for name, entry in listed.items():
        entry = entry if isinstance(entry, Mapping) else {}
        endpoint = entry.get("endpoint") or shared
        if isinstance(endpoint, str):
            found.append(Method(str(name), str(entry.get("method") or "POST").upper(), endpoint))
    return tuple(found)

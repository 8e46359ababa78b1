"""What an episode asks of its env, written out by hand: plain HTTP, and no code of the product."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

ROOT = Path(__file__).resolve().parent.parent
PORT = 18765
READY_SECONDS = 180.0
Json = dict[str, Any]


@dataclass(frozen=True)
class Bundle:
    """A bundle to measure with.

    Attributes:
        name: What ``--bundle`` calls it.
        path: Its folder.
        task: The task that every episode plays; None is the first.
        tool: The tool that an episode calls.
        arguments: Its arguments.
        probe: Tool and arguments for calls by the hundred: cheap for the env, and of no consequence.
    """

    name: str
    path: Path
    task: str | None
    tool: str
    arguments: Mapping[str, Any]
    probe: tuple[str, Mapping[str, Any]]


BUNDLES = {
    "counter": Bundle(
        "counter", ROOT / "tests/bundles/counter", "one-turn", "add", {"amount": 3}, probe=("peek", {})
    ),
    "gridsim": Bundle(
        "gridsim", ROOT / "bundles/gridsim-v1", None, "submit_schedule", {"actions": [0] * 24},
        probe=("submit_schedule", {"actions": []}),  # refused, and so without a schedule to reckon
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Script:
    """What one task asks of its one env.

    Attributes:
        context: The env's folder.
        dockerfile: Its Dockerfile, relative to that.
        server: The name the env's server is started under.
        private_database: Whether the server is given a database of its own where its files are its own.
        directives: Extension calls before the agent's turn: URI and body.
        access: Changes of tool access, which a server is told where its card says that it keeps such rules.
        role: The agent's role in the env, if any.
        tool: The tool to call.
        arguments: Its arguments.
    """

    context: Path
    dockerfile: str
    server: str
    private_database: bool
    directives: tuple[tuple[str, Mapping[str, Any]], ...]
    access: tuple[tuple[str, Mapping[str, Any]], ...]
    role: str | None
    tool: str
    arguments: Mapping[str, Any]

    def variables(self, port: int, *, private_files: bool) -> dict[str, str]:
        """The environment that the server is started with."""
        found = {"MCP_HOST": "0.0.0.0", "MCP_PORT": str(port)}
        found |= {"ENVIRONMENT_NAME": self.server, "SERVICE_NAME": self.server}
        if self.private_database and private_files:
            found["DATABASE_URL"] = f"sqlite:////tmp/{self.server}.sqlite"
        return found


class HandPlayed:
    """One env, called by hand. Every method makes the requests that the product makes there, and no others.

    Args:
        client: A client that may be shared.
        url: The env's address.
        role: The caller's role, if any.
    """

    def __init__(self, client: httpx.Client, url: str, role: str | None = None) -> None:
        self._client = client
        self._url = url
        self._role = role
        self._mcp = url + "/mcp"
        self._headers = {"Accept": "application/json, text/event-stream"}
        if role:
            self._headers["AgentEnv-Role"] = role
        self._session: str | None = None
        self._ids = itertools.count(1)
        self.card: Json = {}

    def wait(self, pause: float) -> None:
        """Asks for the card until it is answered.

        Raises:
            TimeoutError: It wasn't for three minutes.
        """
        import httpx

        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            try:
                answer = self._client.get(self._url + "/.well-known/agent-env.json", timeout=5)
                if answer.is_success:
                    self.card = answer.json()
                    return
            except httpx.HTTPError:
                pass
            time.sleep(pause)
        raise TimeoutError(f"the env at {self._url} wasn't ready within {READY_SECONDS:g} s")

    def configure(self, uri: str, arguments: Mapping[str, Any]) -> None:
        """Calls the first method of an extension."""
        params = self._advertised()[uri]
        method = next(iter(params["methods"].values()))
        place = self._url + (method.get("endpoint") or params["endpoint"])
        self._client.request(method.get("method", "POST"), place, json=dict(arguments)).raise_for_status()

    def change_access(self, uri: str, arguments: Mapping[str, Any]) -> None:
        """Calls an extension where there is one."""
        if uri in self._advertised():
            self.configure(uri, arguments)

    def _advertised(self) -> dict[str, Json]:
        return {entry["uri"]: entry.get("params") or {} for entry in self.card["capabilities"]["extensions"]}

    def open(self) -> None:
        """Opens an MCP session and lists the tools, all pages of them."""
        info = {"name": "bench", "version": "1"}
        asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        agreed = self._ask("initialize", asked)
        self._headers["MCP-Protocol-Version"] = agreed["protocolVersion"]
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        page = self._ask("tools/list", {})
        while cursor := page.get("nextCursor"):
            page = self._ask("tools/list", {"cursor": cursor})

    def call(self, tool: str, arguments: Mapping[str, Any]) -> Json:
        """Calls a tool."""
        meta = {"agentenv.io/role": self._role, "agentenv.io/session": self._session}
        meta = {key: value for key, value in meta.items() if value}
        return self._ask("tools/call", {"name": tool, "arguments": dict(arguments), "_meta": meta})

    def close(self) -> None:
        """Ends the MCP session."""
        if self._session is not None:
            self._client.delete(self._mcp, headers=self._headers)

    def data(self) -> Json:
        """What a verifier looks at."""
        asked = {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {}}
        answer = self._client.post(self._url + "/agentenv", json=asked)
        found: Json = answer.raise_for_status().json()["result"]
        return found

    def _ask(self, method: str, params: Json) -> Json:
        answer = self._post({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params})
        found: Json = answer["result"]
        return found

    def _post(self, message: Json) -> Json:
        answer = self._client.post(self._mcp, json=message, headers=self._headers).raise_for_status()
        if message["method"] == "initialize" and (session := answer.headers.get("Mcp-Session-Id")):
            self._session = self._headers["Mcp-Session-Id"] = session
        if "id" not in message:
            return {}
        if answer.headers["Content-Type"].startswith("text/event-stream"):
            lines = (line for line in answer.text.split("\n") if line.startswith("data:"))
            found: Json = json.loads(next(lines)[5:])
        else:
            found = answer.json()
        return found

"""An env that counts, and misbehaves when asked to. Nothing but the standard library."""

import json
import os
import socket
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = os.environ.get("ENVIRONMENT_NAME", "counter")
LOAD = {"type": "object", "properties": {"start": {"type": "integer"}, "goal": {"type": "integer"}}}
CARD = {
    "name": NAME,
    "protocolVersion": "1.0",
    "url": "/agentenv",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
    "capabilities": {
        "extensions": [
            {
                "uri": "urn:counter:load/v1",
                "params": {
                    "endpoint": "/agentenv/ext/load",
                    "methods": {"load": {"method": "POST", "request": LOAD}},
                },
            }
        ],
        "operations": ["data/get"],
    },
}


class Refused(Exception):
    """What a tool answers as an error."""


class World:
    """The counter, one for the whole server.

    Attributes:
        value: Where it stands.
        goal: Where it should stand at the end.
        calls: How many tool calls were made.
        verify: How the verifier should behave; for tests of verifiers that fail.
        listing: How ``tools/list`` should behave: ``""``, ``"twice"``.
    """

    def __init__(self) -> None:
        self.value, self.goal, self.calls = 0, 3, 0
        self.verify, self.listing = "", ""
        self.roles: list[str] = []

    def load(self, args: dict) -> dict:
        """Sets the counter up for a task."""
        unknown = set(args) - {"start", "goal", "verify", "listing"}
        if unknown or not isinstance(args.get("start", 0), int):
            raise Refused(f"can't load {args!r}")
        self.value = args.get("start", 0)
        self.goal = args.get("goal", 3)
        self.verify = args.get("verify", "")
        self.listing = args.get("listing", "")
        return {"value": self.value}

    def state(self) -> dict:
        """What the verifier sees."""
        return {key: getattr(self, key) for key in ("value", "goal", "calls", "verify", "roles")}


WORLD = World()


def add(amount: int) -> str:
    """Adds to the counter."""
    if not isinstance(amount, int) or isinstance(amount, bool):
        raise Refused(f"amount must be a whole number, not {amount!r}")
    WORLD.value += amount
    return json.dumps({"value": WORLD.value})


def peek() -> str:
    """Says where the counter stands."""
    return json.dumps({"value": WORLD.value})


def hint() -> str:
    """Says where it should stand."""
    return json.dumps({"goal": WORLD.goal})


def whoami(*, role: str) -> str:
    """Says in which role it is called."""
    return role


def write(path: str, text: str) -> str:
    """Writes a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return "written"


def read(path: str) -> str:
    """Reads a file."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def big(size: int) -> str:
    """Answers with a long text."""
    return "x" * size


def hang() -> str:
    """Never answers."""
    threading.Event().wait()
    return ""


def crash() -> str:
    """Ends the server."""
    print("the counter crashed, as it was told to", file=sys.stderr, flush=True)
    os._exit(7)


def schema(**properties: str) -> dict:
    """A JSON Schema with these required properties."""
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


TOOLS = {
    "add": (add, schema(amount="integer")),
    "peek": (peek, schema()),
    "hint": (hint, schema()),
    "whoami": (whoami, schema()),
    "write": (write, schema(path="string", text="string")),
    "read": (read, schema(path="string")),
    "big": (big, schema(size="integer")),
    "hang": (hang, schema()),
    "crash": (crash, schema()),
}
HIDDEN = {"hint"}


def listed(name: str) -> dict:
    """A tool as ``tools/list`` shows it."""
    tool = {"name": name, "description": TOOLS[name][0].__doc__, "inputSchema": TOOLS[name][1]}
    return {**tool, "_meta": {"agentenv.io/hiddenByDefault": True}} if name in HIDDEN else tool


def call(params: dict, role: str) -> dict:
    """A tool call's result."""
    WORLD.calls += 1
    WORLD.roles.append(role)
    name = params["name"]
    try:
        if name not in TOOLS:
            raise Refused(f"unknown tool: {name}")
        extra = {"role": role} if name == "whoami" else {}
        text, failed = TOOLS[name][0](**params.get("arguments", {}), **extra), False
    except (Refused, TypeError, OSError) as exc:
        text, failed = str(exc), True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def rpc(message: dict, role: str) -> dict:
    """The result of one MCP request."""
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        info = {"name": NAME, "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        names = [*TOOLS, "add"] if WORLD.listing == "twice" else list(TOOLS)
        at = int(params.get("cursor", 0))  # in pages, so that clients show that they turn them
        page = {"tools": [listed(name) for name in names[at : at + 6]]}
        return {**page, "nextCursor": str(at + 6)} if at + 6 < len(names) else page
    if method == "tools/call":
        return call(params, role)
    raise Refused(f"unknown method: {method}")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or headers and body, sent one after the other, take 40 ms
    wbufsize = -1

    def log_message(self, *args: object) -> None:
        """Stays silent."""

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """Sends JSON."""
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def body(self) -> dict:
        """The request's JSON."""
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def do_GET(self) -> None:
        """The card."""
        if self.path == "/.well-known/agent-env.json":
            self.answer(200, CARD)
        else:
            self.answer(405, {"error": "no streams here"})

    def do_DELETE(self) -> None:
        """The end of a session."""
        self.answer(200)

    def do_POST(self) -> None:
        """MCP, the data plane, and the one extension."""
        body = self.body()
        if self.path == "/mcp":
            self.mcp(body)
        elif self.path == "/agentenv":
            found = {"parts": [{"kind": "data", "data": WORLD.state()}]}
            self.answer(200, {"jsonrpc": "2.0", "id": body.get("id"), "result": found})
        elif self.path == "/agentenv/ext/load":
            try:
                self.answer(200, WORLD.load(body))
            except Refused as exc:
                self.answer(400, {"ok": False, "error": {"code": "invalid_params", "message": str(exc)}})
        else:
            self.answer(404, {"error": self.path})

    def mcp(self, message: dict) -> None:
        """One MCP message."""
        if "id" not in message:
            self.answer(202)
            return
        headers = {"Mcp-Session-Id": uuid.uuid4().hex} if message["method"] == "initialize" else {}
        try:
            result = {"result": rpc(message, self.headers.get("AgentEnv-Role", ""))}
        except Refused as exc:
            result = {"error": {"code": -32601, "message": str(exc)}}
        self.answer(200, {"jsonrpc": "2.0", "id": message["id"], **result}, **headers)


class Server(ThreadingHTTPServer):
    """A thread a connection; hung ones don't outlive the server."""

    daemon_threads = True
    request_queue_size = 64

    def server_bind(self) -> None:
        """Binds, without asking the network what this machine is called."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]


def main() -> None:
    """Serves, unless it was told not to."""
    start = os.environ.get("COUNTER_START", "")
    if start == "die":
        sys.exit("the counter refuses to start, as it was told to")
    if start == "never":
        threading.Event().wait()
    time.sleep(float(start or 0))
    address = os.environ.get("MCP_HOST", "0.0.0.0"), int(os.environ.get("MCP_PORT", "18765"))
    Server(address, Handler, bind_and_activate=True).serve_forever()


if __name__ == "__main__":
    main()

"""An env that keeps a ledger: entries, who wrote them, and what time it was. Nothing but the standard library.

It is several envs in one file: its tools are named after the server's registered name, and a server named ``strict``
keeps access rules of its own.
"""

import base64
import json
import os
import socketserver
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

NAME = os.environ.get("ENVIRONMENT_NAME", "ledger")
HIDDEN = {"agentenv.io/hiddenByDefault": True}
ANY = {"type": "object"}


class Ledger:
    """All state of the server.

    Attributes:
        entries: What was written.
        want: What should stand in it at the end.
        roles: The roles that wrote, in order.
        sessions: How many MCP sessions were opened.
        clock: Where to ask for the time.
        hour: How far time was moved on.
        disabled: Tools that this server itself refuses.
    """

    def __init__(self) -> None:
        self.entries: dict = {}
        self.want: dict = {}
        self.roles: list[str] = []
        self.sessions, self.hour = 0, 0
        self.clock = ""
        self.disabled: set[str] = set()

    def state(self) -> dict:
        """What the data plane exports."""
        return {"entries": self.entries, "want": self.want, "roles": self.roles, "sessions": self.sessions}

    def restore(self, data: dict) -> None:
        """Takes entries from a seed: bare entries, or what :meth:`state` exported."""
        self.entries.update(data.get("entries", data))
        self.want.update(data.get("want", {}))


LEDGER = Ledger()


def ask(url: str, body: dict | None = None) -> dict:
    """A JSON answer of the clock."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method="GET" if body is None else "PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def put(args: dict, role: str) -> object:
    """Writes an entry."""
    LEDGER.entries[args["key"]] = args["value"]
    LEDGER.roles.append(role)
    return {"key": args["key"], "entries": len(LEDGER.entries)}


def get(args: dict, role: str) -> object:
    """Reads an entry."""
    return LEDGER.entries[args["key"]]


def secret(args: dict, role: str) -> object:
    """Is hidden by default."""
    return "sesame"


def notice(args: dict, role: str) -> object:
    """Notes something down, in whose role, and when."""
    LEDGER.entries.setdefault("notices", []).append([args["text"], role])
    return "noted"


def whoami(args: dict, role: str) -> object:
    """Says in which role it is called."""
    return role


def now(args: dict, role: str) -> object:
    """Says what time it is."""
    return ask(LEDGER.clock)["virtual_time"] if LEDGER.clock else "real"


def advance(args: dict, role: str) -> object:
    """Moves the time on by a day."""
    LEDGER.hour += 24
    if LEDGER.clock:
        time = f"2026-03-{1 + LEDGER.hour // 24:02}T09:00:00Z"
        ask(LEDGER.clock.removesuffix("time") + "set-time", {"virtual_time": time})
    return {"watch": LEDGER.hour // 24}


TOOLS = {f"{NAME}_{tool.__name__}": tool for tool in (put, get, secret, notice, whoami, now, advance)}
if NAME == "clash":
    TOOLS["north_put"] = put


def described() -> list[dict]:
    """The tools as MCP lists them."""
    listed = [
        {"name": name, "description": tool.__doc__, "inputSchema": ANY}
        for name, tool in TOOLS.items()
        if name not in LEDGER.disabled
    ]
    return [{**tool, "_meta": HIDDEN} if tool["name"].endswith("_secret") else tool for tool in listed]


def call(params: dict, role: str) -> dict:
    """Calls a tool; whatever goes wrong in it is an error result."""
    try:
        if params["name"] in LEDGER.disabled:
            raise ValueError("the server itself refuses this tool")
        text = json.dumps(TOOLS[params["name"]](params.get("arguments") or {}, role))
    except Exception as exc:
        return {"content": [{"type": "text", "text": repr(exc)}], "isError": True}
    return {"content": [{"type": "text", "text": text}]}


def extension(path: str, body: dict) -> object:
    """The server's own extensions."""
    if path == "set":
        LEDGER.restore(body)
    elif path == "sync":
        LEDGER.clock = body["env_get_time_url"]
        return ask(LEDGER.clock)
    elif path == "disable":
        LEDGER.disabled |= set(body["tools"])
    elif path == "enable":
        LEDGER.disabled -= set(body["tools"])
    return {}


def offered(uri: str, path: str) -> dict:
    """An extension as the card shows it."""
    return {"uri": uri, "params": {"endpoint": f"/agentenv/ext/{path}", "methods": {path: {"method": "POST"}}}}


EXTENSIONS = [offered("urn:ledger:set/v1", "set")]
if NAME != "south":
    EXTENSIONS.append(offered("urn:agentenv:clock/v1", "sync"))
if NAME == "strict":
    EXTENSIONS += [offered(f"urn:agentenv:{what}-tool/v1", what) for what in ("disable", "enable")]
CARD = {
    "name": NAME,
    "protocolVersion": "1.0",
    "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
    "capabilities": {
        "extensions": EXTENSIONS,
        "operations": ["data/get"] if NAME == "strict" else ["data/reset", "data/add", "data/get"],
    },
}


def content(part: dict) -> dict:
    """What a part of ``data/add`` holds."""
    if part["kind"] == "data":
        return part["data"]
    file = part["file"]
    if "bytes" in file:
        return json.loads(base64.b64decode(file["bytes"]))
    with open(unquote(urlsplit(file["uri"]).path), encoding="utf-8") as opened:
        return json.load(opened)


def data(method: str, params: dict) -> dict:
    """The data plane."""
    if method == "data/reset":
        LEDGER.entries.clear()
    elif method == "data/add":
        for part in params["parts"]:
            LEDGER.restore(content(part))
    elif method == "data/get":
        return {"parts": [{"kind": "data", "data": LEDGER.state()}]}
    return {}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *args: object) -> None:
        """Stays silent."""

    def answer(self, status: int, body: object = None, **headers: str) -> None:
        """Sends JSON."""
        sent = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(sent)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(sent)

    def do_GET(self) -> None:
        """The card."""
        self.answer(200, CARD) if self.path == "/.well-known/agent-env.json" else self.answer(405)

    def do_DELETE(self) -> None:
        """The end of a session."""
        self.answer(200)

    def do_POST(self) -> None:
        """MCP, the data plane, and the extensions."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/mcp":
            self.mcp(body)
        elif self.path == "/agentenv":
            try:
                told = {"result": data(body["method"], body.get("params") or {})}
            except Exception as exc:
                told = {"error": {"code": -32000, "message": repr(exc), "data": {"code": "add_failed"}}}
            self.answer(200, {"jsonrpc": "2.0", "id": body.get("id"), **told})
        else:
            self.answer(200, extension(self.path.rpartition("/")[2], body))

    def mcp(self, message: dict) -> None:
        """One MCP message."""
        method = message["method"]
        headers = {}
        if "id" not in message:
            self.answer(202)
            return
        if method == "initialize":
            LEDGER.sessions += 1
            headers = {"Mcp-Session-Id": uuid.uuid4().hex}
            found = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": NAME}}
            found["serverInfo"]["version"] = "1"
        elif method == "tools/list":
            found = {"tools": described()}
        else:
            found = call(message["params"], self.headers.get("AgentEnv-Role", ""))
        self.answer(200, {"jsonrpc": "2.0", "id": message["id"], "result": found}, **headers)


class Server(socketserver.ThreadingTCPServer):
    """A thread a connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


Server((os.environ.get("MCP_HOST", "0.0.0.0"), int(os.environ.get("MCP_PORT", "18765"))), Handler).serve_forever()

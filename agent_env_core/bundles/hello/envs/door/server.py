"""A door with a keypad, and a note beside it. The env protocol by hand: nothing but the standard library."""

import json
import os
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAME = os.environ.get("ENVIRONMENT_NAME", "door")
LOAD = {
    "uri": "urn:door:load/v1",
    "params": {
        "endpoint": "/agentenv/ext/load",
        "methods": {"load": {"method": "POST", "request": {"type": "object", "required": ["code", "note"]}}},
    },
}
CARD = {
    "name": NAME,
    "protocolVersion": "1.0",
    "url": "/agentenv",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
    "capabilities": {"extensions": [LOAD], "operations": ["data/get"]},
}
WORLD = {"code": "", "note": "", "open": False, "wrong": 0}


def read_note() -> str:
    """Read the note beside the door."""
    return WORLD["note"]


def enter_code(code: str) -> str:
    """Enter a code on the keypad of the door."""
    if code != WORLD["code"]:
        WORLD["wrong"] += 1
        return "The keypad blinks red. The door stays shut."
    WORLD["open"] = True
    return "The keypad blinks green. The door is open."


NO_ARGUMENTS = {"type": "object", "properties": {}}
ONE_CODE = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "the digits, without spaces"}},
    "required": ["code"],
}
TOOLS = {"read_note": (read_note, NO_ARGUMENTS), "enter_code": (enter_code, ONE_CODE)}


def mcp(method: str, params: dict) -> dict:
    """The result of one MCP request."""
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": NAME, "version": "1"},
        }
    if method == "tools/list":
        return {
            "tools": [
                {"name": name, "description": function.__doc__, "inputSchema": schema}
                for name, (function, schema) in TOOLS.items()
            ]
        }
    try:
        text, failed = TOOLS[params["name"]][0](**params.get("arguments", {})), False
    except (KeyError, TypeError) as exc:
        text, failed = f"this can't be called: {exc}", True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are sent one after the other
    wbufsize = -1

    def log_message(self, *args: object) -> None:
        """Stays silent."""

    def answer(self, body: object, status: int = 200, **headers: str) -> None:
        """Sends JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """The card."""
        known = self.path == "/.well-known/agent-env.json"
        self.answer(CARD if known else {}, 200 if known else 404)

    def do_DELETE(self) -> None:
        """The end of an MCP session."""
        self.answer({})

    def do_POST(self) -> None:
        """MCP, the state for the verifier, and the task's own settings."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/agentenv/ext/load":
            WORLD.update(code=body["code"], note=body["note"], open=False, wrong=0)
            self.answer({})
        elif self.path == "/agentenv":
            parts = [{"kind": "data", "data": {"open": WORLD["open"], "wrong": WORLD["wrong"]}}]
            self.answer({"jsonrpc": "2.0", "id": body["id"], "result": {"parts": parts}})
        elif "id" in body:
            session = {"Mcp-Session-Id": uuid.uuid4().hex} if body["method"] == "initialize" else {}
            result = mcp(body["method"], body.get("params") or {})
            self.answer({"jsonrpc": "2.0", "id": body["id"], "result": result}, **session)
        else:
            self.answer({}, 202)


if __name__ == "__main__":
    address = os.environ.get("MCP_HOST", "0.0.0.0"), int(os.environ.get("MCP_PORT", "18765"))
    ThreadingHTTPServer(address, Handler).serve_forever()

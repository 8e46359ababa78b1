"""The HTTP side of the client, at addresses where something else answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from agent_env_core.client import Address, Server
from agent_env_core.errors import AgentEnvError


@pytest.fixture(params=["<html>welcome</html>", "[]"])
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a web server that answers everything with the same text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = request.param.encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


def test_another_web_server_is_told_as_such(stranger: str) -> None:
    with pytest.raises(AgentEnvError, match="has no /agent-env/v1/info: it isn't one that"):
        Server(Address.of(stranger)).info()

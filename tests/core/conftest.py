"""What tests of several packages share: a model behind an API that says what it is told to."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Answer = str | int | dict[str, Any] | tuple[int, bytes, dict[str, str]] | None | Callable[[dict[str, Any]], "Answer"]
"""A text, an HTTP status to fail with, a message, a whole response, None to hang up, or a function of the request that
returns one of these."""


class ScriptedModel:
    """An HTTP server that speaks OpenAI's chat completions.

    Attributes:
        url: Its address, ``/v1`` included.
        answers: What it says, in order; the last one for good.
        requests: The bodies it was sent.
        keys: The ``Authorization`` header of each.
        busiest: How many requests it had at once, at most.
        models: The models it lists; None where it lists none.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.busiest = 0
        self.models: list[str] | None = ["m"]
        self._lock = threading.Lock()
        self._at_once = 0
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = model.answer(body, self.headers.get("Authorization"))
                if found is None:
                    self.close_connection = True
                else:
                    self.send(*found)

            def do_GET(self) -> None:
                listed = {"data": [{"id": name} for name in model.models or ()]}
                self.send(404 if model.models is None else 200, json.dumps(listed).encode(), {})

            def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                sent = {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
                for name, value in sent.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                if not isinstance(sys.exception(), ConnectionError):  # a client that went away is what tests are about
                    super().handle_error(request, client_address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def says(self, *answers: Answer) -> None:
        """Sets what it says from now on."""
        self.answers = list(answers)

    def answer(self, body: dict[str, Any], key: str | None) -> tuple[int, bytes, dict[str, str]] | None:
        """The answer to one request."""
        with self._lock:
            self.requests.append(body)
            self.keys.append(key)
            answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
            self._at_once += 1
            self.busiest = max(self.busiest, self._at_once)
        try:
            while callable(answer):
                answer = answer(body)
        finally:
            with self._lock:
                self._at_once -= 1
        if answer is None or isinstance(answer, tuple):
            return answer
        if isinstance(answer, int):
            return answer, json.dumps({"error": {"message": f"refused by script ({answer})"}}).encode(), {}
        message = {"role": "assistant", **(answer if isinstance(answer, dict) else {"content": answer})}
        choice = {"index": 0, "finish_reason": message.pop("finish_reason", "stop"), "message": message}
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        return 200, json.dumps({"choices": [choice], "usage": usage}).encode(), {}

    def close(self) -> None:
        """Stops it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="session")
def calling() -> Callable[..., dict[str, Any]]:
    """A message that calls tools: ``calling(("add", {"amount": 3}), …)``; arguments that are a text go as they are."""

    def message(*calls: tuple[str, Any], say: str | None = None) -> dict[str, Any]:
        made = [
            {
                "id": f"call-{at}",
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for at, (name, given) in enumerate(calls)
        ]
        return {"content": say, "tool_calls": made, "finish_reason": "tool_calls"}

    return message


@pytest.fixture
def scripted_model() -> Iterator[ScriptedModel]:
    model = ScriptedModel()
    yield model
    model.close()

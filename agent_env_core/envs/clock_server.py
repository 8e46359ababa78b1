"""Tells the virtual time to an env's server. Runs in the env's own sandbox, on nothing but Python 3.8's library.

Called as ``python3 - TIME RATE``, in a folder for its file ``clock.json``. It prints the address it listens at, and
stays behind. It answers as the published gateway does: ``GET …/time`` and ``…/state`` tell, ``PUT …/set-time`` sets.
"""

# ruff: noqa: UP017 - datetime.UTC is of Python 3.11, and a sandbox may have 3.8

from __future__ import annotations

import http.server
import json
import os
import socketserver
import sys
import time
from datetime import datetime, timedelta, timezone
from typing import cast


class Clock:
    """A time that was set, and how fast it runs since."""

    def __init__(self, text: str, rate: float) -> None:
        self.set(text, rate)

    def set(self, text: str, rate: float) -> None:
        """Sets it and notes that for the outside; raises ValueError for what is no time or rate."""
        start = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if start.tzinfo is None or not 0 <= rate <= 86400:
            raise ValueError("virtual_time needs a zone, and the rate is from 0 to 86400")
        self.text, self.rate, self.start, self.since = text, rate, start.astimezone(timezone.utc), time.monotonic()
        with open("clock.json.new", "w", encoding="utf-8") as file:
            json.dump({"virtual_time": text, "rate": rate, "set_at": time.time()}, file)
        os.replace("clock.json.new", "clock.json")

    def tell(self) -> dict[str, object]:
        """What it shows."""
        now = self.start + timedelta(seconds=(time.monotonic() - self.since) * self.rate)
        shown = now.isoformat().replace("+00:00", "Z")
        return {"armed": True, "virtual_time": shown, "t0": self.text, "virtual_seconds_per_real_second": self.rate}


class Server(socketserver.ThreadingTCPServer):  # HTTPServer asks the network for this machine's name
    """A server of one clock, at a port of the system's choice."""

    daemon_threads = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.clock = clock


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for the clock of its server."""

    @property
    def clock(self) -> Clock:
        """The clock."""
        return cast("Server", self.server).clock

    def log_message(self, *args: object) -> None:
        """Stays silent: nobody reads it."""

    def answer(self, status: int, body: object) -> None:
        """Sends JSON."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """The time, by whatever path."""
        self.answer(200, self.clock.tell())

    def do_PUT(self) -> None:
        """Another time; the rate stays where none is given."""
        clock = self.clock
        try:
            body = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), 65536)))
            clock.set(body["virtual_time"], float(body.get("virtual_seconds_per_real_second", clock.rate)))
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            self.answer(400, {"error": repr(exc)})
        else:
            self.answer(200, clock.tell())


def main() -> None:
    """Binds, tells where, and goes on without whoever waits."""
    server = Server(Clock(sys.argv[1], float(sys.argv[2])))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""The warm process that verifiers are forked from: ``python -m agent_env_core.verifiers.worker FD``.

It has imported what verifiers use, runs one thread and no event loop, and does nothing but fork: each job arrives as a
socket of its own. It ends when the server's end of the control socket closes, in whatever way the server ended.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import ssl
import sys
from typing import Any

from agent_env_core.verifiers import walls
from agent_env_core.verifiers.supervisor import supervise
from agent_env_core.verifiers.wire import pack

WARM = (
    "httpx",
    "httpcore",
    "h11",
    "certifi",
    "anyio._backends._asyncio",
    "agentenv_protocol.client",
    "mcp.client.streamable_http",
)
"""Imported once, here, so that no verifier waits for it: mcp alone takes 0.2 s, and a first request 0.04 s."""


def ready_tls() -> None:
    """Makes the TLS context that a verifier's first HTTP client asks for, which takes 26 ms of CPU, once for all forks.

    A fork hands it out to the first that asks for one like it. Every later one is made as ever, so that no two clients
    share what one of them may change.
    """
    import httpx

    make = ssl.create_default_context
    asked: list[tuple[Any, Any]] = []

    def noted(*args: Any, **options: Any) -> ssl.SSLContext:
        asked.append((args, options))
        return make(*args, **options)

    ssl.create_default_context = noted
    ready = [httpx.create_ssl_context()]

    def create_default_context(*args: Any, **options: Any) -> ssl.SSLContext:
        return ready.pop() if ready and asked == [(args, options)] else make(*args, **options)

    ssl.create_default_context = create_default_context


def main() -> None:
    """Serves jobs until the server is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    walls.hide()
    for name in WARM:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a verifier that needs it says so itself
    ready_tls()
    gc.collect()
    gc.freeze()  # forks then share these pages
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are never waited for
    control.sendall(pack({"ready": os.getpid()}))
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except ConnectionError:
            return
        if not message:
            return
        channel = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            control.close()
            supervise(channel)
        channel.close()


if __name__ == "__main__":
    main()

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
import sys

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


def main() -> None:
    """Serves jobs until the server is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in WARM:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a verifier that needs it says so itself
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

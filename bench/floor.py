"""The floor: the same image's container or process, started and called by hand, with nothing around it.

A container is made with the very options that the product sets, so that the ratio shows what our code costs and not
what a container with limits costs. Readiness is asked for a hundred times a second over all sessions: as often as
does not slow the starts down.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.calls import PORT, HandPlayed, Script

if TYPE_CHECKING:
    from docker import APIClient

POLL = 0.010
"""Seconds between two looks for readiness, for one session; twice as long for two, and so on."""
LABEL = "agent-env-bench"
KEPT_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"]


class Starter(Protocol):
    """Starts and ends one server by hand."""

    @contextmanager
    def started(self) -> Iterator[str]:
        """A fresh server's address; it is gone when the context ends."""
        yield ""

    def close(self) -> None:
        """Ends what is left."""


class Containers:
    """Containers, by the Docker SDK.

    Args:
        image: A reference to the image.
        script: What is played.
    """

    def __init__(self, image: str, script: Script) -> None:
        from agent_env_docker import network, prereqs

        self._image = image
        self._script = script
        self._client: APIClient = prereqs.connect(timeout=60, connections=64)
        self._network = network.ensure(self._client)
        self._live: set[str] = set()

    @contextmanager
    def started(self) -> Iterator[str]:
        """See :class:`Starter`."""
        container = self._start()
        try:
            published = self._client.inspect_container(container)["NetworkSettings"]["Ports"][f"{PORT}/tcp"]
            yield f"http://127.0.0.1:{published[0]['HostPort']}"
        finally:
            self._client.remove_container(container, v=True, force=True)
            self._live.discard(container)

    def _start(self) -> str:
        from docker.types import LogConfig

        memory = 4096 << 20
        made = self._client.create_container(
            self._image,
            environment=self._script.variables(PORT, private_files=True),
            ports=[PORT],
            labels={LABEL: str(os.getpid())},
            healthcheck={"test": ["NONE"]},
            use_config_proxy=False,
            host_config=self._client.create_host_config(
                network_mode=self._network,
                init=True,
                mem_limit=memory,
                memswap_limit=memory,
                pids_limit=512,
                cap_drop=["ALL"],
                cap_add=KEPT_CAPABILITIES,
                security_opt=["no-new-privileges"],
                port_bindings={PORT: ("127.0.0.1", None)},
                log_config=LogConfig(type="json-file", config={"max-size": "4m", "max-file": "1"}),
            ),
        )
        container = str(made["Id"])
        self._live.add(container)
        self._client.start(container)
        return container

    def close(self) -> None:
        """See :class:`Starter`."""
        for container in list(self._live):
            with contextlib.suppress(Exception):
                self._client.remove_container(container, v=True, force=True)
        self._client.close()


class Processes:
    """Processes, each in a copy of the image's files.

    Args:
        image: The name of a prepared image.
        script: What is played.
    """

    def __init__(self, image: str, script: Script) -> None:
        from agent_env_process.provider import ProcessProvider

        self._image = ProcessProvider()._cache.get(image)
        self._script = script
        self._folder = Path(tempfile.mkdtemp(prefix=f"{LABEL}-"))
        self._live: set[int] = set()

    @contextmanager
    def started(self) -> Iterator[str]:
        """See :class:`Starter`."""
        image = self._image
        home = Path(tempfile.mkdtemp(dir=self._folder))
        with _held_port() as held:
            port = held.getsockname()[1]
            shutil.copytree(image.tree, home / "root")
            command = image.paths(home / "root").command(image.command)
            variables = self._script.variables(port, private_files=False) | {"MCP_HOST": "127.0.0.1"}
            process = subprocess.Popen(
                command,
                cwd=image.paths(home / "root").host(image.workdir),
                env={"PATH": f"{image.bin}:{os.environ['PATH']}", "LANG": "C.UTF-8", **image.env, **variables},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._live.add(process.pid)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._live.discard(process.pid)
                shutil.rmtree(home)

    def close(self) -> None:
        """See :class:`Starter`."""
        for pid in list(self._live):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


def _held_port() -> socket.socket:
    """A socket that is bound and never listens: its port is nobody else's for as long as it's open."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


STARTERS: dict[str, Callable[[str, Script], Starter]] = {"docker": Containers, "process": Processes}


@dataclass(frozen=True)
class Played:
    """One episode played by hand.

    Attributes:
        first_answer: Seconds until the first tool call was answered.
        phases: Seconds in each part, under the names of the product's own.
    """

    first_answer: float
    phases: dict[str, float]


class Clock:
    """Notes how long one thing after another takes."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._began = self._lap = time.perf_counter()

    def lap(self, name: str) -> None:
        """Ends one thing, and begins the next."""
        now = time.perf_counter()
        self.laps[name], self._lap = now - self._lap, now

    @property
    def total(self) -> float:
        """Seconds from the beginning to the last end of a thing."""
        return self._lap - self._began


class Floor:
    """Plays episodes by hand.

    Args:
        provider: ``docker`` or ``process``.
        image: The provider's reference to the prepared image.
        script: What is played.
    """

    def __init__(self, provider: str, image: str, script: Script) -> None:
        import httpx

        self._script = script
        self._starter = STARTERS[provider](image, script)
        self._client = httpx.Client(timeout=60, trust_env=False, limits=httpx.Limits(max_connections=None))

    def play(self, sessions: int) -> Played:
        """Plays one episode, from the start of a sandbox to its removal.

        Args:
            sessions: How many are played side by side.
        """
        script = self._script
        clock = Clock()
        with self._starter.started() as url:
            env = HandPlayed(self._client, url, script.role)
            env.wait(POLL * sessions)
            clock.lap("deploy")
            for uri, arguments in script.directives:
                env.configure(uri, arguments)
            for uri, arguments in script.access:
                env.change_access(uri, arguments)
            clock.lap("setup")
            env.open()
            began = time.perf_counter()
            env.call(script.tool, script.arguments)
            clock.laps["tool"] = time.perf_counter() - began
            clock.lap("play")
            answered = clock.total
            env.close()
            env.data()
            clock.lap("verify")
        clock.lap("teardown")
        return Played(answered, clock.laps)

    def close(self) -> None:
        """Ends what is left."""
        self._client.close()
        self._starter.close()

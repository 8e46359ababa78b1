"""A server in a process of its own, as a trainer starts one, and episodes played on it over sockets.

For faults that strike a process or a machine, and no single call: there is no schedule for these, a test brings each
about by hand. What comes of every episode is told in the same words, so that one rule judges them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.exceptions import WebSocketException

from chaos.envs import COUNTER
from chaos.wire import Wire, wire

PATIENCE = 120.0
"""Seconds a player waits for an answer; past its server's own deadlines, so that a wait this long is a hang."""


@dataclass(frozen=True)
class Ended:
    """What came of one episode.

    Attributes:
        reward: Its reward, or None.
        why: What was told where it has none.
        kind: The phase in which it was lost; OpenEnv's code where a session was refused, ``socket`` where it broke.
        seconds: How long it took.
    """

    reward: float | None
    why: str = ""
    kind: str = ""
    seconds: float = 0.0

    @property
    def wrong(self) -> str:
        """What is wrong with this end; empty for the right score, or for none with its reason."""
        if self.reward is None:
            return "" if self.why.strip() else "it has no score, and nobody said why"
        if not math.isfinite(self.reward) or self.reward != 1.0:
            return f"it was scored {self.reward}, and 1.0 is right: {self.why}"
        return ""


class Server:
    """A server's process.

    Attributes:
        process: The process.
        url: Where it answers.
        lifeline: The end of the pipe that its trainer would hold.
    """

    def __init__(self, process: subprocess.Popen[str], told: int, lifeline: int) -> None:
        self.process, self.lifeline = process, lifeline
        self.url = ""
        self._told = open(told, encoding="utf-8")  # noqa: SIM115 - close() does

    def ready(self) -> str:
        """Waits until it answers; its address.

        Raises:
            RuntimeError: It can't start; the message is what it told.
        """
        for line in self._told:
            message = json.loads(line)
            if message["event"] == "ready":
                self.url = message["url"]
                return self.url
            if message["event"] == "failed":
                raise RuntimeError(message["text"])
        raise RuntimeError(f"it ended with status {self.process.wait()} and told nothing: {self.said()}")

    def said(self) -> str:
        """What it wrote to standard error, once it has ended."""
        return self.process.communicate(timeout=60)[1]

    def trainer_dies(self) -> None:
        """Closes the pipe, as the kernel does for a trainer that is killed."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.lifeline = -1

    def close(self, seconds: float = 120.0) -> None:
        """Lets it end by itself, or kills it when that takes too long."""
        self.trainer_dies()
        self._told.close()
        try:
            self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise


@contextlib.contextmanager
def server(
    sandbox: str,
    *,
    bundle: Path = COUNTER,
    sessions: int = 8,
    through: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that starts; it is ended at the end.

    Args:
        sandbox: The provider.
        bundle: What it serves.
        sessions: How many it allows at once.
        through: A command that is given the server's as its last arguments, and becomes it.
        env: Variables on top of this process's.
    """
    theirs, lifeline = os.pipe()
    told, tells = os.pipe()
    command = [*through, sys.executable, "-m", "agent_env_core.server", str(bundle), "--sandbox", sandbox]
    command += ["--max-concurrent-envs", str(sessions), "--parent-fd", str(theirs), "--ready-fd", str(tells)]
    process = subprocess.Popen(
        command, pass_fds=(theirs, tells), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **(env or {})}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.close(tells)
    started = Server(process, told, lifeline)
    try:
        yield started
    finally:
        started.close()


async def episode(
    url: str,
    *,
    pause: Callable[[], Awaitable[object]] | None = None,
    patience: float = PATIENCE,
    **options: object,
) -> Ended:
    """Plays one episode to its score, which is 1.0 unless something goes wrong.

    Args:
        url: The server's.
        pause: Awaited in the middle of the episode, after its first tool call.
        patience: Seconds that any one answer may take.
        options: What its reset says besides the task, such as ``tool_timeout``.
    """
    began = time.monotonic()
    try:
        async with wire(url, patience) as session:
            ended = await _play(session, pause, options)
    except (OSError, WebSocketException) as exc:
        ended = Ended(None, f"{type(exc).__name__}: {exc}", "socket")
    except TimeoutError:
        ended = Ended(math.nan, f"no answer within {patience:g} s")
    return Ended(ended.reward, ended.why, ended.kind, time.monotonic() - began)


async def _play(session: Wire, pause: Callable[[], Awaitable[object]] | None, options: Mapping[str, object]) -> Ended:
    await session.send_reset(**options)
    told = await session.answer()
    if not told["done"]:
        told = await session.call("add", amount=1)
    if pause is not None:
        await pause()
    if not told["done"]:
        told = await session.call("add", amount=2)
    if not told["done"]:
        told = await session.call("end_turn")
    return _ended(told)


def _ended(told: Mapping[str, Any]) -> Ended:
    """The last answer, in the words of :class:`Ended`."""
    seen = told["observation"]
    seen = {**seen, **(seen.get("metadata") or {})}
    error = seen.get("error") or ""
    if isinstance(error, dict):  # OpenEnv's own
        return Ended(told["reward"], str(error.get("message", "")), str(error.get("error_type") or error.get("code")))
    return Ended(told["reward"], str(error), str(seen.get("phase") or ""))


class Gate:
    """Where episodes wait in their middle, until a fault has struck.

    Args:
        count: How many are waited for.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._all, self._open = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> None:
        """For an episode: waits until the gate opens."""
        self._left -= 1
        if self._left <= 0:
            self._all.set()
        await self._open.wait()

    async def all_there(self, seconds: float = PATIENCE) -> None:
        """Waits until all of them are in the middle of their episode."""
        async with asyncio.timeout(seconds):
            await self._all.wait()

    def open(self) -> None:
        """Lets them go on."""
        self._open.set()

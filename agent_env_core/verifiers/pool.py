"""The server's side of verifying: one warm process, jobs forked from it, deadlines, and what comes back checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env_core.errors import EpisodeError, describe
from agent_env_core.verifiers.aggregate import check_rows
from agent_env_core.verifiers.wire import HEADER, MAX_FRAME, pack

START_TIMEOUT = 60.0
GRACE = 15.0
"""Seconds past a verifier's deadline after which its worker itself is taken to be stuck."""
STOP_TIMEOUT = 5.0
PASSED_ON = ("PATH", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""The environment variables a verifier sees, and no others: those of a server hold its secrets."""


@dataclass(frozen=True)
class VerifierJob:
    """One run of a verifier.

    Attributes:
        file: The Python file that defines ``verify``.
        mcp_url: What ``verify`` is called with.
        base_url: The env's address.
        headers: What every request to that address must carry.
        run: The record of the run, see :func:`~agent_env_core.verifiers.record.write_run`.
        arguments: What else ``verify`` is called with, by name; only our own verifiers take any.
    """

    file: Path
    mcp_url: str
    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What messages call it: its file with the folder, which is the artifact; most are called ``verify.py``."""
        return f"{self.file.parent.name}/{self.file.name}"


class VerifierPool:
    """Runs verifiers in processes apart from the server; all calls on one event loop.

    Args:
        timeout: Seconds one ``verify`` may take.
        at_once: How many run at the same time; the rest wait, and their waiting doesn't count.
    """

    def __init__(self, *, timeout: float = 300.0, at_once: int | None = None) -> None:
        self.timeout = timeout
        self._slots = asyncio.Semaphore(at_once or max(4, 2 * (os.cpu_count() or 1)))
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._closed = False

    async def start(self) -> None:
        """Starts the warm process, unless it runs.

        Raises:
            EpisodeError: It doesn't start; the reason holds its last words.
        """
        async with self._starting:
            if self._closed:
                raise EpisodeError("verify", "the server is closing")
            if self._process is not None and self._process.returncode is None:
                return
            await self._stop()
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self._control = ours
            with tempfile.TemporaryFile() as errors:
                try:
                    self._process = await asyncio.create_subprocess_exec(
                        sys.executable, "-P", "-m", "agent_env_core.verifiers.worker", str(theirs.fileno()),
                        pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL,
                        stdout=asyncio.subprocess.DEVNULL, stderr=errors, start_new_session=True,
                        env=_environment(), cwd="/",
                    )  # fmt: skip
                finally:
                    theirs.close()
                if not await _greeted(ours):
                    await self._stop()
                    errors.seek(0)
                    said = " ".join(errors.read().decode(errors="replace").split())[-600:]
                    raise EpisodeError("verify", f"the verifier process doesn't start: {said or 'it said nothing'}")

    async def verify(self, job: VerifierJob) -> list[dict[str, Any]]:
        """Runs a verifier and returns its rows, checked.

        Raises:
            EpisodeError: Of phase ``verify``: it raised, hung, ended its process, or returned what can't be scored.
        """
        async with self._slots:
            await self.start()
            try:
                async with asyncio.timeout(self.timeout + GRACE):
                    reply = await self._ask(job)
            except TimeoutError as exc:
                raise EpisodeError("verify", f"{job.name} and its process are stuck", retryable=True) from exc
            except (OSError, EOFError, ValueError, RecursionError) as exc:
                reason = f"the process of {job.name} was lost: {describe(exc)}"
                raise EpisodeError("verify", reason, retryable=True) from exc
        if "fault" in reply:
            raise EpisodeError("verify", f"{job.name} {reply['fault']}", retryable=bool(reply["retryable"]))
        try:
            return check_rows(reply["rows"])
        except ValueError as exc:
            raise EpisodeError("verify", f"{job.name}: {exc}") from exc

    async def _ask(self, job: VerifierJob) -> dict[str, Any]:
        """Hands a job to a fresh fork. Hanging up, for any reason, ends the fork and all it started."""
        assert self._control is not None
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"j"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(
                pack({
                    "file": str(job.file), "mcp_url": job.mcp_url, "base_url": job.base_url,
                    "headers": dict(job.headers), "run": dict(job.run), "arguments": dict(job.arguments),
                    "timeout": self.timeout,
                })
            )  # fmt: skip
            await writer.drain()
            (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
            if size > MAX_FRAME:
                raise ValueError(f"it answered with {size} bytes")
            reply = json.loads(await reader.readexactly(size))
            if not isinstance(reply, dict) or reply.keys() not in ({"rows"}, {"fault", "retryable"}):
                raise ValueError("it answered with what is no answer")
            return reply
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def aclose(self) -> None:
        """Ends the process, and with it every verifier that still runs."""
        self._closed = True
        async with self._starting:
            await self._stop()

    async def _stop(self) -> None:
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT):
                await process.wait()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _greeted(control: socket.socket) -> bool:
    """Whether the process at the other end came up."""
    try:
        async with asyncio.timeout(START_TIMEOUT):
            return bool(await asyncio.get_running_loop().sock_recv(control, 1024))
    except (TimeoutError, OSError):
        return False


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {**kept, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

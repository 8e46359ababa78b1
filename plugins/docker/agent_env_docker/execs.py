"""Commands in a sandbox, through the engine's exec calls.

The engine starts each command as the leader of a session of its own and can't stop it again. So a command is started
under a shell that first waits for one line on its stdin, then says its process number, then becomes the command:

* Nothing has run before the line was sent, so a call that is cancelled early runs nothing, and no output can arrive
  before this side listens (the SDK drops what arrives along with the response's headers).
* The process number is the session's, and the environment holds a token: by these two, a second exec finds the
  command's whole tree and kills it.

What the command reads is a file, which is gone before it runs. The connection wouldn't do: by TLS it can't be closed by
half, which is how an input ends, nor be used by two threads at once; and Podman drops the output of a command that
leaves its input unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import Gone, SandboxError, Unavailable, describe
from agent_env_core.sandbox.commands import KILL_TREE, TOKEN_VARIABLE, Kept, finish
from agent_env_core.sandbox.contract import ExecResult
from agent_env_docker import files
from agent_env_docker.engine import Engine
from agent_env_docker.failure import alive, inside, short

if TYPE_CHECKING:
    from docker import APIClient

logger = logging.getLogger("agent_env_docker")

# Without an input it starts no process: a sandbox that is full of them may still run what the shell becomes.
_START = 'read -r go || exit 125; exec 3<"$1"; [ -z "$2" ] || rm -f "$2" 2>&-; shift 2; echo $$ >&2; exec "$@" <&3 3<&-'

# What the engine says where its own machine is at fault.
_ENGINE_FAULTS = ("no space left on device", "too many open files")
_STDOUT, _STDERR = 1, 2
_GRACE = 5.0
_SLOW_START = 30.0
_NO_ROOM = 2.0


async def run(
    engine: Engine,
    sandbox_id: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: bytes | None = None,
    timeout: float | None = None,
    limit: int,
) -> ExecResult:
    """Runs a command; see :meth:`agent_env_core.sandbox.contract.Sandbox.exec`.

    Args:
        engine: Where.
        sandbox_id: In which sandbox.
        argv: The command.
        env: Variables on top of the sandbox's own.
        cwd: Working folder; by default the sandbox's own.
        stdin: What it reads.
        timeout: Seconds it may take.
        limit: How many bytes of each output are kept.
    """
    if not argv:
        raise ValueError("docker: exec needs a command")
    command = Command(sandbox_id, argv, env or {}, cwd, stdin or b"", limit)
    done = engine.thread(command.run)
    try:
        finished, _ = await asyncio.wait({done}, timeout=timeout)
    except asyncio.CancelledError:
        with contextlib.suppress(SandboxError):  # the caller left; where the sandbox ended too, the next call says so
            await finish(_end(engine, command, done))
        raise
    if finished:
        return done.result()
    await finish(_end(engine, command, done))
    return ExecResult(None, command.stdout, command.stderr, timed_out=True)


async def _end(engine: Engine, command: Command, done: asyncio.Future[ExecResult]) -> None:
    """Kills a command's tree.

    Raises:
        Gone: The sandbox ended, or had to be ended since the tree could not be killed.
    """
    await engine.call(command.kill)
    await asyncio.wait({done}, timeout=_GRACE)
    if not done.done():  # something that holds the command's output open without being of its tree
        command.hang_up()
        await asyncio.wait({done}, timeout=_GRACE)
    if done.done() and isinstance(gone := done.exception(), Gone):
        raise gone


class Command:
    """One command, from its start to its exit code. :meth:`run` blocks one thread, :meth:`kill` another."""

    def __init__(
        self, sandbox_id: str, argv: Sequence[str], env: Mapping[str, str], cwd: str | None, stdin: bytes, limit: int
    ) -> None:
        self._sandbox_id = sandbox_id
        self._argv = list(argv)
        self._token = secrets.token_hex(12)
        self._env = {**env, TOKEN_VARIABLE: self._token}
        self._cwd = cwd
        self._stdin = stdin
        self._file = f"/tmp/.agent-env-{self._token}" if stdin else ""  # noqa: S108 -- in a sandbox, which is of one tenant
        self._lock = threading.Lock()
        self._over = False  # it must not start any more
        self._exec_id: str | None = None  # set once it may have started
        self._socket: socket.socket | None = None
        self._session: int | None = None
        self._outputs = {_STDOUT: Kept(limit), _STDERR: Kept(limit)}

    @property
    def stdout(self) -> bytes:
        """What it has written to stdout so far."""
        return self._outputs[_STDOUT].value()

    @property
    def stderr(self) -> bytes:
        """What it has written to stderr so far."""
        return self._outputs[_STDERR].value()

    # -- running

    def run(self, client: APIClient) -> ExecResult:
        """Starts it and follows it to its end."""
        try:
            return self._run(client)
        finally:
            if self._file and self._session is None:  # whoever removes it first has not begun
                self._remove_input(client)

    def _run(self, client: APIClient) -> ExecResult:
        with inside(client, self._sandbox_id, "running a command"):
            if self._file:
                files.write(client, self._sandbox_id, self._file, self._stdin)
            shell = ["sh", "-c", _START, "sh", self._file or "/dev/null", self._file, *self._argv]
            made = client.exec_create(self._sandbox_id, shell, stdin=True, environment=self._env, workdir=self._cwd)
            exec_id = str(made["Id"])
            stream = client.exec_start(exec_id, socket=True)
            try:
                self._follow(exec_id, stream)
            finally:
                with contextlib.suppress(OSError):
                    stream._response.close()  # type: ignore[union-attr]  # the SDK's own way to keep it alive
                with contextlib.suppress(OSError):
                    stream.close()
            return self._result(client, exec_id)

    def _remove_input(self, client: APIClient) -> None:
        try:
            made = client.exec_create(self._sandbox_id, ["rm", "-f", self._file])
            client.exec_start(made["Id"])
        except Exception as exc:  # most likely the sandbox has ended
            logger.debug("the input of a command stays in %s: %s", short(self._sandbox_id), describe(exc))

    def _follow(self, exec_id: str, stream: Any) -> None:
        connection: socket.socket = getattr(stream, "_sock", stream)
        connection.settimeout(None)  # a command may be silent for as long as it likes
        with self._lock:
            if self._over:
                return  # closing makes the waiting shell leave
            self._exec_id, self._socket = exec_id, connection
            with contextlib.suppress(OSError):  # it failed to start: what the engine sent says why
                connection.sendall(b"\n")
        try:
            self._listen(connection)
        finally:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _listen(self, connection: socket.socket) -> None:
        """Takes the frames of the output apart: one byte says which, four how long, big-endian."""
        buffer = bytearray()
        while piece := connection.recv(1 << 16):
            buffer += piece
            start = 0
            while len(buffer) - start >= 8:
                kind, size = struct.unpack_from(">BxxxL", buffer, start)
                if len(buffer) - start - 8 < size:
                    break
                self._take(kind, buffer[start + 8 : start + 8 + size])
                start += 8 + size
            del buffer[:start]

    def _take(self, kind: int, data: bytearray) -> None:
        output = self._outputs.get(kind)
        if output is None:
            return
        output.add(data)
        if kind == _STDERR and self._session is None:
            self._session = output.take_number()

    # -- its end

    def _result(self, client: APIClient, exec_id: str) -> ExecResult:
        code = self._exit_code(client, exec_id)
        if self._session is None:
            return self._not_started(client)
        if code == 137:  # killed by its own fault, or because the sandbox was ended?
            require_alive(client, self._sandbox_id)
        return ExecResult(code, self.stdout, self.stderr)

    def _exit_code(self, client: APIClient, exec_id: str) -> int:
        """The exit code; the output may end long before the command does."""
        pause, looks = 0.002, 0
        while True:
            info = client.exec_inspect(exec_id)
            if not info["Running"] and info["ExitCode"] is not None:
                return int(info["ExitCode"])
            looks += 1
            if looks % 10 == 0:
                alive(client, self._sandbox_id)
            if self._over:
                raise Unavailable(f"docker: a command in {short(self._sandbox_id)} was given up")
            time.sleep(pause)
            pause = min(0.25, pause * 1.5)

    def _not_started(self, client: APIClient) -> ExecResult:
        """The engine could not start the shell, or the shell the command."""
        said = self.stdout + self.stderr
        text = said.decode(errors="replace").strip()
        if any(fault in text.lower() for fault in _ENGINE_FAULTS):
            raise Unavailable(f"docker: a command in {short(self._sandbox_id)} could not be started: {text}")
        require_alive(client, self._sandbox_id)  # whatever it said: the files of a sandbox that ends go before it does
        if '"sh"' in text and "executable file not found" in text.lower():
            text = "agent-env runs commands through `sh`, which this image does not have"
            return ExecResult(127, b"", text.encode() + b"\n")
        return ExecResult(126, b"", (text or "the command could not be started").encode() + b"\n")

    def kill(self, client: APIClient) -> None:
        """Ends the whole tree, or keeps it from starting; returns when it is dead.

        Raises:
            Gone: The sandbox has ended, or was ended here because the tree could not be killed.
        """
        with self._lock:
            self._over = True
            exec_id = self._exec_id
        if exec_id is None:
            return
        with inside(client, self._sandbox_id, "killing a command"):
            began = time.monotonic()
            pause = 0.01
            while True:
                # A sweep that began after the command had started, or had ended, misses nothing.
                settled = self._session is not None or client.exec_inspect(exec_id)["ExitCode"] is not None
                problem = self._sweep(client)
                if settled and problem is None:
                    return
                # A busy engine may take long to start a command; a process that can't be started now won't be soon.
                if time.monotonic() - began > (_SLOW_START if problem is None else _NO_ROOM):
                    break
                time.sleep(pause)
                pause = min(0.2, pause * 2)
            alive(client, self._sandbox_id)
            reason = problem or "the engine does not get it started"
            client.kill(self._sandbox_id)
        text = (
            f"docker: the sandbox {short(self._sandbox_id)} was ended, since a command in it can't be stopped: {reason}"
        )
        logger.warning(text)
        raise Gone(text)

    def _sweep(self, client: APIClient) -> str | None:
        """Kills what is there of the tree; returns why that failed, or None."""
        script = ["sh", "-c", KILL_TREE, "sh", self._token, str(self._session or "unknown")]
        made = client.exec_create(self._sandbox_id, script)
        said = client.exec_start(made["Id"])
        code = _short_code(client, made["Id"])
        if code == 0:
            return None
        return " ".join(bytes(said).decode(errors="replace").split()) or f"killing it ended with code {code}"

    def hang_up(self) -> None:
        """Stops listening."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def require_alive(client: APIClient, sandbox_id: str) -> None:
    """Makes sure that a sandbox runs, when a kill or a failed start makes one doubt it.

    The engine's flags lag behind the death of a container, so they alone don't tell. A new command that starts does:
    where the first process is dead, none can.

    Raises:
        Gone: It has ended.
    """
    alive(client, sandbox_id)
    made = client.exec_create(sandbox_id, ["sh", "-c", ":"])
    client.exec_start(made["Id"])
    if _short_code(client, made["Id"]) == 0:
        return
    _wait_for_end(client, sandbox_id)
    alive(client, sandbox_id)


def _short_code(client: APIClient, exec_id: str) -> int | None:
    """The exit code of one of our own short commands, whose output has ended; the engine may need a moment for it."""
    deadline = time.monotonic() + _GRACE
    while (code := client.exec_inspect(exec_id)["ExitCode"]) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return None if code is None else int(code)


def _wait_for_end(client: APIClient, sandbox_id: str) -> None:
    """Gives the engine a moment to notice an end; returns at once when it does."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        client.wait(sandbox_id, timeout=2, condition="not-running")
    except (DockerException, RequestException, SandboxError) as exc:
        logger.debug("no end of %s: %s", short(sandbox_id), describe(exc))

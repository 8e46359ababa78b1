"""Commands in a sandbox, through the SDK's exec calls.

Modal can't end a command once it runs, tells its end only when everything that holds its output open has ended too, and
gives it an input that nobody closes. So each command runs under a shell that

* closes its input where the caller has none to give,
* starts it in a session of its own, whose number is the first line of stderr, with a token in its environment: by
  these two another exec finds the whole tree and kills it,
* writes the token to both outputs after the command's end, with its exit code on stdout. What was written before that
  is the command's output, whoever else still holds the pipes.

Nothing here starts a command twice: the SDK gives each a number of its own and repeats calls under that number.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import SandboxError, Unavailable
from agent_env_core.sandbox.commands import KILL_TREE, TOKEN_VARIABLE, Kept, finish
from agent_env_core.sandbox.contract import ExecResult
from agent_env_modal.failure import translated

if TYPE_CHECKING:
    from modal.container_process import ContainerProcess
    from modal.io_streams import StreamReader
    from modal.sandbox import Sandbox

ARGV_LIMIT = 48 << 10
"""Bytes of arguments that are handed to the SDK, which takes 64 KiB; what is longer goes through a file."""

# Arguments: whether there is input, a folder or nothing, a file that sets the arguments or nothing, the command.
_RUN = r"""
input=$1 folder=$2 file=$3; shift 3
[ -z "$file" ] || { . "$file"; rm -f "$file"; }
[ -n "$input" ] || exec </dev/null
code=0
if [ -n "$folder" ] && ! cd "$folder"; then code=126; fi
if [ "$code" = 0 ]; then
  own=; command -v setsid >/dev/null 2>&1 && own=setsid
  $own sh -c 'echo $$ >&2; exec "$@"' sh "$@"
  code=$?
fi
printf '%s %s\n' "$AGENT_ENV_EXEC" "$code"
printf '%s\n' "$AGENT_ENV_EXEC" >&2
"""

_CHUNK = 1 << 20
_GRACE = 10.0
_KILL_SECONDS = 30.0


class Command:
    """One command.

    Args:
        sandbox: The SDK's handle.
        argv: The command.
        env: Variables on top of the sandbox's own.
        cwd: Working folder; None takes the sandbox's own.
        stdin: What it reads; None is nothing.
        limit: How many bytes of each output are kept.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bytes | None,
        limit: int,
    ) -> None:
        self._sandbox, self._argv, self._cwd, self._stdin = sandbox, list(argv), cwd, stdin
        self._token = secrets.token_hex(16)
        self._env: dict[str, str | None] = {**env, TOKEN_VARIABLE: self._token}
        self._out, self._err = Output(self._token, limit), Output(self._token, limit, told=True)

    async def run(self, timeout: float | None) -> ExecResult:
        """Runs it; see :meth:`agent_env_core.sandbox.contract.Sandbox.exec`."""
        starting = asyncio.create_task(self._start())
        following = asyncio.create_task(self._follow(starting))
        try:
            done, _ = await asyncio.wait({following}, timeout=timeout)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):  # the caller left; if something is wrong, the next call says so
                await finish(self._end(starting, following))
            raise
        if done:
            return ExecResult(following.result(), self._out.value(), self._err.value())
        await finish(self._end(starting, following))
        return ExecResult(None, self._out.value(), self._err.value(), timed_out=True)

    async def _start(self) -> ContainerProcess[bytes]:
        file, argv = "", self._argv
        with translated("starting a command"):
            if sum(len(os.fsencode(part)) for part in argv) > ARGV_LIMIT:
                file, argv = f"/tmp/.agent-env-{self._token}", []  # noqa: S108 - the sandbox's own
                text = " ".join(["set --", *map(shlex.quote, self._argv)])
                await self._sandbox.filesystem.write_bytes.aio(os.fsencode(text), file)
            shell = ["sh", "-c", _RUN, "sh", "" if self._stdin is None else "yes", self._cwd or "", file, *argv]
            return await self._sandbox.exec.aio(*shell, env=self._env, text=False)

    async def _follow(self, starting: asyncio.Task[ContainerProcess[bytes]]) -> int:
        """Reads what it writes and gives it what it reads, until it has ended; its exit code."""
        process = await asyncio.shield(starting)
        feeding = asyncio.create_task(self._feed(process, self._stdin))
        try:
            with translated("running a command"):
                async with asyncio.TaskGroup() as group:
                    for output, stream in ((self._out, process.stdout), (self._err, process.stderr)):
                        group.create_task(output.read(stream))
                if self._out.code is not None:
                    return self._out.code
                return await process.wait.aio()  # the shell itself was killed
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _feed(self, process: ContainerProcess[bytes], data: bytes | None) -> None:
        """Gives it all its input; a command may end without having read it, which is then no error."""
        if data is None:
            return  # the shell has closed it
        for start in range(0, len(data), _CHUNK):
            process.stdin.write(data[start : start + _CHUNK])
            await process.stdin.drain.aio()
        process.stdin.write_eof()
        await process.stdin.drain.aio()

    async def _end(self, starting: asyncio.Task[ContainerProcess[bytes]], following: asyncio.Task[int]) -> None:
        """Kills its tree and takes what it had written.

        Raises:
            Unavailable: Nobody knows whether it still runs.
        """
        await asyncio.wait({starting}, timeout=_GRACE)
        try:
            if not starting.done():
                raise Unavailable(f"modal: a command wasn't started within {_GRACE:g} s more than it was given")
            starting.result()
            await self._kill()
            await asyncio.wait({following}, timeout=_GRACE)
        finally:
            for task in (starting, following):
                task.cancel()
            await asyncio.gather(starting, following, return_exceptions=True)

    async def _kill(self) -> None:
        shell = ["sh", "-c", KILL_TREE, "sh", self._token, self._err.told or "none"]
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                with translated("ending a command"):
                    killing = await self._sandbox.exec.aio(*shell, text=False)
                    code = await killing.wait.aio()
        except TimeoutError as exc:
            raise Unavailable(f"modal: a command wasn't ended within {_KILL_SECONDS:g} s") from exc
        if code != 0:
            raise Unavailable(f"modal: a command can't be ended (exit code {code})")


class Output:
    """One of a command's two streams: the beginning is kept, and the end is found by its token.

    Args:
        token: What the shell writes after the command's end.
        limit: How many bytes are kept.
        told: Whether the first line is the session's number.

    Attributes:
        code: The exit code that stood behind the token.
        told: The session's number, once it was read.
    """

    def __init__(self, token: str, limit: int, *, told: bool = False) -> None:
        self._token = token.encode()
        self._kept, self._tail = Kept(limit), bytearray()
        self._heading = told
        self.told = ""
        self.code: int | None = None

    async def read(self, stream: StreamReader[bytes]) -> None:
        """Takes all that the command writes."""
        chunks: Any = aiter(stream)
        async with aclosing(chunks):
            async for chunk in chunks:
                if self.add(chunk):
                    return
        self._keep(len(self._tail))

    def add(self, chunk: bytes) -> bool:
        """Takes a part of the stream; says whether the end was in it."""
        self._tail += chunk
        if self._heading:
            line, newline, rest = self._tail.partition(b"\n")
            if not newline:
                return False
            if line.isdigit():
                self.told, self._tail = line.decode(), rest
            self._heading = False
        at = self._tail.find(self._token)
        if at < 0:
            self._keep(len(self._tail) - len(self._token))
            return False
        end = self._tail.find(b"\n", at)
        if end < 0:
            self._keep(at)
            return False
        code = bytes(self._tail[at + len(self._token) : end]).strip()
        self.code = int(code) if code.isdigit() else None
        self._keep(at)
        self._tail.clear()
        return True

    def _keep(self, count: int) -> None:
        """Moves the first ``count`` bytes out of what is looked through."""
        if count <= 0:
            return
        self._kept.add(self._tail[:count])
        del self._tail[:count]

    def value(self) -> bytes:
        """What was kept; it says so where something was dropped."""
        if not self._heading:
            self._keep(len(self._tail))  # a command that was cut off has no token behind its output
        return self._kept.value()

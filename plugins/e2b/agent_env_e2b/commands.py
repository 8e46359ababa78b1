"""Commands in a sandbox: started through E2B's SDK, run and ended by our own supervisor in there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import Gone, SandboxError, Unavailable
from agent_env_core.sandbox.commands import TOKEN_VARIABLE, Kept, finish
from agent_env_core.sandbox.contract import ExecResult
from agent_env_e2b.failure import obituary, translated
from agent_env_e2b.supervisor import (
    LONGEST_LINE,
    Report,
    end_line,
    input_path,
    line_path,
    packed,
    run_line,
)

if TYPE_CHECKING:
    from e2b import AsyncSandbox

logger = logging.getLogger("agent_env_e2b")

PATIENCE = 15.0
"""Seconds past a command's time in which the supervisor must say that it killed it; then it's done from outside."""

LINGER = 0.5
"""Seconds a stream is given to end by itself once all was said."""

SWEEP_TIMEOUT = 30.0
"""Seconds the killing of a tree may take."""


class Stream:
    """What one supervisor says, followed until it has said all, or until its stream breaks.

    Args:
        sandbox: Where.
        report: Takes what it says.
        doing: What is being done, for messages.
    """

    def __init__(self, sandbox: AsyncSandbox, report: Report, doing: str) -> None:
        self._sandbox, self._report, self._doing = sandbox, report, doing
        self._said = asyncio.Event()
        self._handle: Any = None
        self._following: asyncio.Task[None] | None = None
        self._complaints = ""

    @property
    def pid(self) -> int:
        """The supervisor's process."""
        return int(self._handle.pid)

    async def open(self, line: str, *, user: str, env: Mapping[str, str], request_timeout: float) -> None:
        """Starts it; returns once it runs.

        Raises:
            SandboxError: It isn't known to run.
        """
        with translated(self._doing):
            self._handle = await self._sandbox.commands.run(
                line, background=True, envs=dict(env), user=user, cwd="/", timeout=0, request_timeout=request_timeout,
                on_stdout=self._take, on_stderr=self._complain, retain_output=False,
            )  # fmt: skip
        self._following = asyncio.create_task(self._follow())

    async def reopen(self, pid: int) -> bool:
        """Goes on listening to one whose stream broke; what it said meanwhile is lost. False where it has ended."""
        from e2b import NotFoundException, SandboxNotFoundException

        with translated(self._doing):
            try:
                self._handle = await self._sandbox.commands.connect(
                    pid, timeout=0, on_stdout=self._take, on_stderr=self._complain, retain_output=False
                )
            except SandboxNotFoundException:
                raise
            except NotFoundException:
                return False
        self._following = asyncio.create_task(self._follow())
        return True

    def _take(self, text: str) -> None:
        self._report.feed(text)
        if self._report.over:
            self._said.set()

    def _complain(self, text: str) -> None:
        self._complaints = (self._complaints + text)[-2000:]

    async def _follow(self) -> None:
        """Waits for the end of the stream; raises where it broke."""
        from e2b import CommandExitException

        with translated(self._doing):
            try:
                ended = await self._handle.wait()
                code = ended.exit_code
            except CommandExitException as exc:
                code = exc.exit_code
        if not self._report.over:  # somebody killed it, or it couldn't be started: then what the shell says tells why
            self._report.code = int(code) if code >= 0 else 137
            self._report.keep("e", (self._report.noise + self._complaints).encode())

    async def over(self, timeout: float | None = None) -> None:
        """Waits until all was said.

        Raises:
            TimeoutError: It wasn't within ``timeout`` seconds.
            SandboxError: The stream broke before.
        """
        assert self._following is not None
        said = asyncio.create_task(self._said.wait())
        try:
            done, _ = await asyncio.wait({said, self._following}, timeout=timeout, return_when="FIRST_COMPLETED")
        finally:
            said.cancel()
        if not done:
            raise TimeoutError
        if not self._report.over:
            self._following.result()

    async def close(self, *, linger: float = 0.0) -> None:
        """Stops listening; the command isn't ended by it."""
        if self._following is None:
            return
        if linger:
            await asyncio.wait({self._following}, timeout=linger)
        if not self._following.done():
            await self._handle.disconnect()
            self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)


class Command:
    """One ``exec``.

    Args:
        sandbox: Where.
        user: As whom.
        limit: Bytes that are kept of each stream.
        request_timeout: Seconds E2B may take to answer one call.
    """

    def __init__(self, sandbox: AsyncSandbox, user: str, limit: int, request_timeout: float) -> None:
        self._sandbox, self._user, self._limit = sandbox, user, limit
        self._request_timeout = request_timeout
        self._token = secrets.token_hex(12)
        self._outputs = {"o": Kept(limit), "e": Kept(limit)}
        self._report = Report(lambda kind, data: self._outputs[kind].add(data))

    async def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        stdin: bytes | None,
        timeout: float | None,
    ) -> ExecResult:
        """Runs it to its end; see :meth:`agent_env_core.sandbox.contract.Sandbox.exec`."""
        stream = Stream(self._sandbox, self._report, "running a command")
        has_input = bool(stdin)
        line = run_line(
            self._token, argv, seconds=timeout or 0.0, limit=self._limit, cwd=cwd or "", has_input=has_input
        )
        try:
            if stdin:
                await self._put(input_path(self._token), stdin)
            if len(line.encode()) > LONGEST_LINE:
                path = line_path(self._token)
                await self._put(path, f"rm -f {path}\n{line}\n".encode())
                line = f". {path}"
            env = {**packed("CALL", env), TOKEN_VARIABLE: self._token}
            await stream.open(line, user=self._user, env=env, request_timeout=self._request_timeout)
            await self._follow(stream, timeout)
        except asyncio.CancelledError:
            with contextlib.suppress(
                SandboxError
            ):  # the caller left; where the sandbox ended too, the next call says so
                await finish(self._give_up(stream))
            raise
        except Gone:
            await stream.close()
            raise
        except SandboxError as exc:
            with contextlib.suppress(Unavailable):  # then its lease ends it
                await finish(self._give_up(stream))
            raise Unavailable(f"{exc}; whether the command ran to its end isn't known") from exc
        await stream.close(linger=LINGER)
        return await self._result()

    async def _put(self, path: str, data: bytes) -> None:
        with translated("sending a command's input"):
            await self._sandbox.files.write(path, data, user=self._user, use_octet_stream=True)

    async def _follow(self, stream: Stream, timeout: float | None) -> None:
        try:
            await stream.over(None if timeout is None else timeout + PATIENCE)
        except TimeoutError:
            await finish(self._give_up(stream))
            self._report.timed_out = True

    async def _give_up(self, stream: Stream) -> None:
        """Kills the whole tree, the supervisor with it, or keeps it from starting.

        Raises:
            Gone: The sandbox has ended, or was ended here since the tree can't be killed.
            Unavailable: Nobody answers.
        """
        await stream.close()
        await self._sweep()

    async def _sweep(self) -> None:
        from e2b import CommandExitException

        with translated("killing a command"):
            try:
                async with asyncio.timeout(SWEEP_TIMEOUT):  # the SDK's own limit doesn't hold on Python 3.11
                    await self._sandbox.commands.run(
                        end_line(self._token), user="root", cwd="/", timeout=0, request_timeout=self._request_timeout
                    )
            except CommandExitException as exc:
                await self._end_sandbox(exc.stderr.strip() or f"killing it ended with code {exc.exit_code}")

    async def _end_sandbox(self, why: str) -> None:
        sandbox_id = self._sandbox.sandbox_id
        logger.warning("ending the sandbox %s, since a command in it can't be killed: %s", sandbox_id, why)
        with translated("ending the sandbox"):
            await self._sandbox.kill()
        raise obituary(sandbox_id, f"it was ended, since a command in it can't be killed: {why}")

    async def _result(self) -> ExecResult:
        report = self._report
        if report.stuck:
            await self._end_sandbox("new processes appear faster than they can be killed")
        if report.timed_out:
            if self._user != "root":  # what it started as another user can't be killed by it
                await finish(self._sweep())
            return ExecResult(None, self._output("o"), self._output("e"), timed_out=True)
        return ExecResult(report.code, self._output("o"), self._output("e"))

    def _output(self, kind: str) -> bytes:
        output = self._outputs[kind]
        output.dropped = self._report.dropped.get(kind, 0)
        return output.value()

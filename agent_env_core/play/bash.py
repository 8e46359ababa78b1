"""``bash``: the tool of an agent that works in a sandbox. It needs nothing of a provider but ``exec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_env_core.envs.results import Tool, ToolResult, failed
from agent_env_core.errors import EpisodeError, Gone, SandboxError, describe
from agent_env_core.steps.placed import PlacedSandbox
from agent_env_core.steps.shell import MARK, probe, shell

NAME = "bash"
LONGEST = 3600.0
"""Seconds that a command may take, where the caller sets no shorter bound."""
KILL_SECONDS = 20.0
"""Seconds after its bound by which a command, and everything it started, has been ended."""
MAX_COMMAND = 120_000
"""Bytes of a command: Linux takes no longer argument than 128 KiB."""
HEAD, TAIL = 24 * 1024, 24 * 1024
"""Bytes of each of the two outputs that are kept, of its beginning and of its end."""

TOOL = Tool(
    name=NAME,
    description=(
        "Runs a command in a shell in your sandbox and returns what it prints. Files and background processes stay from"
        " one command to the next; the working folder and variables don't. Nothing can be typed into a command."
    ),
    input_schema={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    server="",
)


class Bash:
    """The ``bash`` of one turn. Made by :func:`open_bash`."""

    def __init__(self, placed: PlacedSandbox) -> None:
        self._placed = placed
        self._used = False

    async def call(self, arguments: Mapping[str, Any] | None, timeout: float) -> ToolResult:
        """Runs a command; one that fails, or takes too long and is ended for it, is a result.

        Args:
            arguments: ``command`` is the command; others are left alone.
            timeout: Seconds it may take, at most :data:`LONGEST`.

        Raises:
            EpisodeError: The sandbox is gone.
        """
        command = (arguments or {}).get("command")
        if not isinstance(command, str):
            return failed("refused", f"{NAME} needs a text as its argument 'command', not {command!r:.80}")
        try:
            if "\0" in command:
                raise ValueError("it holds a zero byte")
            if (size := len(command.encode())) > MAX_COMMAND:
                raise ValueError(f"it has {size} bytes, and {MAX_COMMAND} may be; write long files piece by piece")
        except ValueError as exc:
            return failed("refused", f"the command can't be run: {exc}")
        self._placed.turns += not self._used
        self._used = True
        limit = min(timeout, LONGEST)
        try:
            done = await shell(self._placed, command, env={MARK: self._placed.mark}, timeout=limit)
        except SandboxError as exc:
            what = "the sandbox ended during the command" if isinstance(exc, Gone) else "the command was lost"
            raise EpisodeError("tool", f"{NAME}: {what}: {describe(exc)}", retryable=exc.retryable) from exc
        said = clipped(done.stdout) + clipped(done.stderr)
        if done.timed_out:
            return failed("tool", _line(said, f"timed out after {limit:g}s; it was ended, with what it started"))
        if done.exit_code:
            return failed("tool", _line(said, f"exit code {done.exit_code}"))
        return ToolResult(({"type": "text", "text": said},))


async def open_bash(placed: PlacedSandbox | None, offered: Mapping[str, str]) -> Bash | None:
    """The ``bash`` of an agent; None for one that works in no sandbox.

    Args:
        placed: Where the agent works.
        offered: The tools it has besides, and whose each is.

    Raises:
        EpisodeError: One of them is called ``bash`` too, or the sandbox can't be worked in.
    """
    if placed is None:
        return None
    if NAME in offered:
        fix = "rename the env's tool, or hide it with a modify_env_tool_access step"
        raise EpisodeError(
            "turn", f"the env {offered[NAME]!r} offers a tool {NAME!r}, and so does the agent's sandbox: {fix}"
        )
    try:
        await probe(placed)
    except SandboxError as exc:
        reason = f"the agent's sandbox can't be used: {describe(exc)}"
        raise EpisodeError("turn", reason, retryable=exc.retryable) from exc
    return Bash(placed)


def clipped(output: bytes, head: int = HEAD, tail: int = TAIL) -> str:
    """Output as text: its beginning and its end, and how much is left out between; bytes that are no text are shown."""
    if len(output) <= head + tail:
        return output.decode(errors="replace")
    left_out = len(output) - head - tail
    first, last = output[:head].decode(errors="replace"), output[-tail:].decode(errors="replace")
    return f"{first}\n[… {left_out} bytes left out; redirect to a file to see them …]\n{last}"


def _line(text: str, last: str) -> str:
    return f"{text}\n{last}" if text and not text.endswith("\n") else text + last

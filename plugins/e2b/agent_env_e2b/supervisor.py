"""The program that runs commands inside a sandbox, and what it says.

E2B's SDK hands on a command's output as text, starts it through a login shell that replaces ``PATH``, waits for whoever
holds the output, and kills one process where a tree must die. So each command is run by a small Perl program (E2B's
images are made of Debian, which always has Perl) that travels in the command line. It writes lines to its stdout:

========  ==================================================================
``oDATA``  base64 of what the command wrote to stdout; ``eDATA`` for stderr
``doN``    N more bytes of stdout were dropped; ``deN`` for stderr
``xN``     the command ended with code N (128 and the signal, where one killed it)
``t``      its time was over, and its whole tree is dead
``f``      its time was over, and its tree can't be killed
========  ==================================================================

Of the last three it says one, and then nothing more.

Variables of a sandbox and of a call travel as ``AGENT_ENV_SPEC_0=NAME=value`` and ``AGENT_ENV_CALL_0=NAME=value``, so
that none of them steers the shell or Perl. What the image sets was written to :data:`IMAGE_ENV` when it was built.
"""

from __future__ import annotations

import binascii
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

IMAGE_ENV, IMAGE_WORKDIR = "/etc/agent-env/env", "/etc/agent-env/workdir"
"""Where a template keeps its image's variables, each ended by a NUL, and its working folder."""

WORKDIR_VARIABLE = "AGENT_ENV_WORKDIR"

LONGEST_LINE = 100_000
"""Bytes of a command line from which on it goes by a file: Linux takes 128 KiB in one argument."""


@cache
def _program() -> str:
    text = resources.files("agent_env_e2b").joinpath("supervisor.pl").read_text(encoding="utf-8")
    return "\n".join(line.strip() for line in text.splitlines() if not line.startswith("#"))


def run_line(
    token: str, argv: Sequence[str], *, seconds: float = 0.0, limit: int, cwd: str = "", has_input: bool = False
) -> str:
    """The shell line that runs a command.

    Args:
        token: The call's own.
        argv: The command.
        seconds: After which its tree is killed; 0 for never.
        limit: Bytes that are kept of each stream.
        cwd: Where it runs; empty for the sandbox's own folder.
        has_input: Whether there is a file at :func:`input_path`.
    """
    return _line("run", token, f"{seconds:.3f}", str(limit), cwd, "1" if has_input else "", *argv)


def end_line(token: str) -> str:
    """The shell line that kills the whole tree of a command, or keeps it from starting; its exit code says whether."""
    return _line("end", token)


def input_path(token: str) -> str:
    """Where the input of a command lies."""
    return f"/tmp/.agent-env-{token}.in"  # noqa: S108 - the sandbox's own


def line_path(token: str) -> str:
    """Where the shell line of a command lies, where it is too long for one."""
    return f"/tmp/.agent-env-{token}.sh"  # noqa: S108 - the sandbox's own


def _line(*words: str) -> str:
    return shlex.join(("exec", "/usr/bin/perl", "-e", _program(), *words))


def packed(kind: str, env: Mapping[str, str]) -> dict[str, str]:
    """Variables as they travel; ``kind`` is ``SPEC`` or ``CALL``."""
    return {f"AGENT_ENV_{kind}_{number}": f"{name}={value}" for number, (name, value) in enumerate(env.items())}


@dataclass
class Report:
    """What a supervisor has said so far. :meth:`feed` takes its stdout as it comes, in pieces.

    Attributes:
        keep: Takes what the command writes: ``o`` or ``e``, and the bytes.
        code: Its exit code, once it has ended.
        timed_out: Its time was over.
        stuck: Its tree can't be killed.
        dropped: Bytes that were not kept, by stream.
        noise: What is none of the protocol: a shell's complaint, where the supervisor couldn't be started.
    """

    keep: Callable[[str, bytes], None]
    code: int | None = None
    timed_out: bool = False
    stuck: bool = False
    dropped: dict[str, int] = field(default_factory=dict)
    noise: str = ""
    _rest: str = ""

    @property
    def over(self) -> bool:
        """Whether it has said how the command ended."""
        return self.code is not None or self.timed_out or self.stuck

    def feed(self, text: str) -> None:
        """Takes a piece of stdout."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        kind, rest = line[:1], line[1:]
        try:
            if kind in ("o", "e"):
                self.keep(kind, binascii.a2b_base64(rest, strict_mode=True))
            elif kind == "d" and rest[:1] in ("o", "e"):
                self.dropped[rest[0]] = int(rest[1:])
            elif kind == "x":
                self.code = int(rest)
            elif line == "t":
                self.timed_out = True
            elif line == "f":
                self.stuck = True
            else:
                raise ValueError(line)
        except ValueError:  # binascii's error is one
            self.noise = (self.noise + line + "\n")[-2000:]

"""One vocabulary for everything that can go wrong.

Two families, told apart by who can act:

* **What the user can fix** before anything runs: :class:`BundleError`, :class:`EpisodeRefused`, :class:`SetupError`,
  :class:`PluginError`, :class:`CapacityError`. They carry every problem at once, each with its place.
* **What happened to one episode**: :class:`EpisodeError`, with the phase, the reason, and whether another try may help.
  It is data, not a crash: an episode that ends in one is *unscored*, never scored 0.

Code of extensions (providers, verifiers, reward functions) raises plain Python exceptions; the boundary that called it
says where it happened (:func:`episode_error`). Only ``KeyboardInterrupt`` and ``SystemExit`` are left alone.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import indent
from typing import Literal

Phase = Literal["queue", "prepare", "deploy", "setup", "turn", "tool", "verify", "reward", "teardown"]
"""Where in an episode's life something happened."""


SHOWN = 50
"""How many problems an error prints; ``problems`` holds them all."""


class AgentEnvError(Exception):
    """Base of every error this project raises on purpose."""


@dataclass(frozen=True, order=True)
class Problem:
    """One thing to mend in a bundle or in a task.

    Attributes:
        place: Where it is: a path relative to the bundle's root, with ``:`` and a step id or key where that helps.
        message: What is wrong, naming the value.
        fix: What to do about it; empty where the message says it all.
    """

    place: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" + (f" ({self.fix})" if self.fix else "")


class _Problems(AgentEnvError):
    """An error made of problems, all of them at once, in a stable order."""

    headline = "has problems"

    def __init__(self, subject: str, problems: Iterable[Problem]) -> None:
        self.subject = subject
        self.problems: tuple[Problem, ...] = tuple(sorted(set(problems)))
        super().__init__(subject, self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        lines = "".join("\n" + indent(str(problem), "  ") for problem in self.problems[:SHOWN])
        more = f"\n  … and {count - SHOWN} more" if count > SHOWN else ""  # one mistake may sit in 2,000 files
        return f"{self.subject} {self.headline}: {count} {noun}{lines}{more}"


class BundleError(_Problems):
    """A bundle that can't be read; ``problems`` holds every fault found, each with its file."""

    headline = "can't be used"


class EpisodeRefused(_Problems):
    """A task that can't be played as an episode; ``problems`` says why, step by step."""

    headline = "can't be played as an episode"


class SetupError(_Problems):
    """A training run that can't be started as it's set up; ``problems`` says what is wrong, setting by setting."""

    headline = "can't be trained with"


class PluginError(AgentEnvError):
    """A plugin that is missing, broken, or in conflict with another.

    Attributes:
        message: What is wrong.
        fix: What to do about it; empty where the message says it all. The error's text is both.
    """

    def __init__(self, message: str, fix: str = "") -> None:
        self.message = message
        self.fix = fix
        super().__init__(message, fix)

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class CapacityError(AgentEnvError):
    """A server that allows no further session; the message says which limit to raise."""


class EpisodeError(AgentEnvError):
    """An episode that ended without a score.

    Attributes:
        phase: Where it happened.
        reason: What happened, in one line that a person can act on.
        retryable: Whether the same task may well succeed when it is played again.
    """

    def __init__(self, phase: Phase, reason: str, *, retryable: bool = False) -> None:
        self.phase: Phase = phase
        self.reason = reason
        self.retryable = retryable
        super().__init__(phase, reason)  # `retryable` travels in __dict__ when this is pickled

    def __str__(self) -> str:
        return f"{self.phase}: {self.reason}"


class SandboxError(AgentEnvError):
    """Base of the six errors a sandbox provider may raise. Each says what a retry would do."""

    retryable = False


class ConfigError(SandboxError):
    """Credentials or the engine are missing or refused. Never retried."""


class NotSetUp(ConfigError):
    """Nobody has set this provider up here: what it can't do without (a key, a package, an engine) is simply not there.

    For who wants to use it it's a :class:`ConfigError` like any other; who asks all providers passes it by.
    """


class ImageError(SandboxError):
    """The image does not build, or does not exist. Never retried."""


class Unsupported(SandboxError):
    """The provider can't do what was asked; raised before anything is created. Never retried."""


class Busy(SandboxError):
    """Quota, rate limit, or no capacity. Nothing was created, so the same call may be made again.

    Attributes:
        retry_after: Seconds to wait before that.
    """

    retryable = True

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Unavailable(SandboxError):
    """The provider didn't answer properly; whether the call took effect is unknown. List by label before a retry."""

    retryable = True


class Gone(SandboxError):
    """The sandbox ended: killed, past its TTL, its main process exited, or evicted. A new one may work."""

    retryable = True


class ModelError(AgentEnvError):
    """A model behind an API that gave no answer: it can't be reached, refuses, or answers what can't be read.

    Attributes:
        retryable: Whether the same request may well succeed later.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        self.retryable = retryable
        super().__init__(message)


class ContextTooLong(ModelError):
    """A conversation that is longer than the model can read. Never retried: it would be just as long."""


def describe(exc: BaseException) -> str:
    """One line for an exception of any kind: its text, or its type where it has none.

    A sandbox error keeps its lines: they are the end of a build's output, or the last words of a process.
    """
    if isinstance(exc, SandboxError):
        return "\n".join(line.rstrip() for line in str(exc).strip().splitlines()) or type(exc).__name__
    text = " ".join(str(exc).split())
    if isinstance(exc, AgentEnvError):
        return text or type(exc).__name__
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def fix_for(exc: OSError, otherwise: str) -> str:
    """What to do about ``exc``: where the machine has run out of something, about that; else ``otherwise``."""
    if exc.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (`ulimit -n 4096`) and start again"
    return "free some space there" if exc.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise


def episode_error(exc: BaseException, phase: Phase) -> EpisodeError:
    """Attributes whatever a boundary caught to ``phase``; an :class:`EpisodeError` passes through unchanged.

    This is the one place where the six sandbox errors and those of models are mapped.
    """
    if isinstance(exc, EpisodeError):
        return exc
    if isinstance(exc, SandboxError | ModelError):
        return EpisodeError(phase, describe(exc), retryable=exc.retryable)
    if isinstance(exc, TimeoutError):
        return EpisodeError(phase, describe(exc), retryable=True)
    return EpisodeError(phase, describe(exc))

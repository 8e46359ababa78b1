"""A server of this machine, run as a child process for as long as the trainer lives.

However the trainer ends, the server ends too, and takes down what it deployed: :meth:`LocalServer.close`, a normal
exit, an exception and a signal Python turns into one all close it in order; when the trainer is killed outright, the
server sees its end of a pipe close, and that its parent is another process now.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from agent_env_core import errors
from agent_env_core.errors import AgentEnvError, Problem
from agent_env_core.server.limits import DEFAULT_SESSIONS, session_limit, warm_limit
from agent_env_trl.ranks import Meeting

logger = logging.getLogger("agent_env.training.trl")

CLOSE_SECONDS = 420.0
"""How long a server may take to tear its episodes down."""
PATIENCE_SECONDS = 5.0
"""A close that takes longer says that it's waiting."""
Bundle = str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]]


class LocalServer:
    """A running server process. Making one waits until it's ready, and shows what takes long.

    Args:
        bundle: A bundle's folder, or several by split.
        sandbox: A sandbox provider's name, or several with commas; None is Docker.
        max_concurrent_envs: Sessions to allow at once.
        warm: Deployments to make ahead; None leaves it to the server.
        scores_only: Leave it to the trainer to make a reward of the scores.
        meeting: Where the other ranks of this node are told of it; it then ends with the last of them.
        check: Is given what the bundle holds, ``splits`` and ``score_ids``, before any image is built. It may raise.

    Raises:
        AgentEnvError, ValueError: What the server couldn't start for, as it said it.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        sandbox: str | None = None,
        max_concurrent_envs: int = DEFAULT_SESSIONS,
        warm: int | None = None,
        scores_only: bool = False,
        meeting: Meeting | None = None,
        check: Callable[[Mapping[str, Any]], None] = lambda told: None,
    ) -> None:
        # -P: a file of the trainer's folder that is named like a package of the server's must not stand in for it
        command = [sys.executable, "-P", "-m", "agent_env_core.server", *_bundle_arguments(bundle)]
        command += ["--max-concurrent-envs", str(session_limit(max_concurrent_envs))]
        command += ["--sandbox", sandbox] if sandbox else []
        command += [] if (ahead := warm_limit(warm)) is None else ["--warm", str(ahead)]
        command += ["--scores-only"] if scores_only else []
        command += ["--shared"] if meeting else []
        self.token = secrets.token_urlsafe(32)
        self.url = ""
        self._pid = os.getpid()
        self._closing = threading.RLock()  # a signal's handler may close it while its thread is closing it
        self._meeting = meeting
        self._lifeline, self._process, ready = _spawn(command, self.token, meeting.lifeline() if meeting else os.pipe())
        atexit.register(self.close)
        self._finalize = Finalize(None, self.close, exitpriority=100)  # a process of multiprocessing skips atexit
        try:
            with open(ready, encoding="utf-8") as lines:
                self.url = self._wait(lines, check)
            if meeting is not None:
                meeting.announce(self.url, self.token, self.pid)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def _wait(self, lines: Iterator[str], check: Callable[[Mapping[str, Any]], None]) -> str:
        """Reads what the server tells until it's ready; returns its URL."""
        for line in lines:
            try:
                told = json.loads(line)
            except ValueError:  # it died while it wrote
                break
            if told["event"] == "ready":
                return str(told["url"])
            if told["event"] == "failed":
                raise _rebuilt(told)
            if told["event"] == "read":
                check(told)
                continue
            print(f"agent-env: {told['text']}", file=sys.stderr, flush=True)
        code = self._process.wait()
        raise AgentEnvError(f"the local server ended before it was ready, with exit status {code}; see its messages")

    def close(self) -> None:
        """Stops the server and waits until its episodes are torn down, for up to seven minutes. Idempotent.

        Where other ranks still use it, they are left to stop it.
        """
        if os.getpid() != self._pid:
            return  # a fork has a copy of this object; the server isn't its own
        with self._closing:
            atexit.unregister(self.close)
            self._finalize.cancel()
            if self._lifeline is None:
                return
            alone = self._meeting is None or self._meeting.leave()
            os.close(self._lifeline)
            self._lifeline = None
            if not alone:
                logger.info("the local server goes on until the other ranks have closed it")
                return
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()  # a fork of ours may still hold the pipe open
            self._wait_for_the_end()

    def kill(self) -> None:
        """Ends the server at once; its reaper removes what it deployed."""
        if os.getpid() == self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _wait_for_the_end(self) -> None:
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(PATIENCE_SECONDS)
                return
            print("agent-env: waiting for the local server to tear its episodes down", file=sys.stderr, flush=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_SECONDS)
                return
            logger.warning("the local server didn't end within %gs and is killed", CLOSE_SECONDS)
            self.kill()
        except KeyboardInterrupt:  # a second Ctrl-C: what is left is the reaper's
            self.kill()
            raise


def _bundle_arguments(bundle: Bundle) -> list[str]:
    for one in bundle.values() if isinstance(bundle, Mapping) and bundle else (bundle,):
        if not isinstance(one, str | os.PathLike) or not os.fspath(one):
            raise TypeError(
                f"{one!r} is no bundle: give its folder, the name of an installed bundle, or several by split, as in"
                ' {"train": "bundles/a", "eval": "bundles/b"}'
            )
    if isinstance(bundle, Mapping):
        return [word for split, path in bundle.items() for word in ("--split", f"{split}={_absolute(path)}")]
    return [_absolute(bundle)]


def _absolute(path: str | os.PathLike[str]) -> str:
    """A path that means the same in the server's process; what isn't there may be the name of an installed bundle."""
    full = Path(path).expanduser().absolute()
    return str(full) if full.exists() else os.fspath(path)


def _spawn(
    command: Sequence[str], token: str, lifeline: tuple[int, int]
) -> tuple[int | None, subprocess.Popen[bytes], int]:
    """Starts the server: our end of its lifeline, the process, and the end its messages come out of."""
    lifeline_theirs, lifeline_ours = lifeline
    ready_ours, ready_theirs = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, "--parent-fd", str(lifeline_theirs), "--ready-fd", str(ready_theirs)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # whatever it prints stands beside the trainer's own messages
            pass_fds=(lifeline_theirs, ready_theirs),
            start_new_session=True,  # a Ctrl-C is the trainer's: it ends the server in order
            env={**os.environ, "AGENT_ENV_TOKEN": token, "PYTHONUNBUFFERED": "1"},
        )
    except BaseException:
        os.close(lifeline_ours)
        os.close(ready_ours)
        raise
    finally:
        os.close(lifeline_theirs)
        os.close(ready_theirs)
    return lifeline_ours, process, ready_ours


def _rebuilt(told: Mapping[str, Any]) -> Exception:
    """The error a server failed with, as far as it can be told apart over a pipe."""
    kind = getattr(errors, str(told.get("kind")), None)
    if isinstance(kind, type) and issubclass(kind, errors.BundleError | errors.EpisodeRefused):
        return kind(told["subject"], [Problem(**problem) for problem in told["problems"]])
    if told.get("kind") == "ValueError":
        return ValueError(told["text"])
    if isinstance(kind, type) and issubclass(kind, AgentEnvError) and not issubclass(kind, errors.EpisodeError):
        return kind(told["text"])
    return AgentEnvError(told["text"])

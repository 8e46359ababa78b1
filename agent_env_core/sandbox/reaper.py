"""The reaper: a small process that outlives its owner and ends what the owner left.

``finally`` and ``atexit`` don't run in a process that is killed outright. So each host starts a companion in a session
of its own, connected by a socket pair. When the owner goes, in whatever way, the companion notices (end of file, or the
owner's pidfd), ends every sandbox with that owner's and run's labels, and exits. While the owner lives it only ends
what outlived its lease, for providers that don't do so themselves.

It runs as ``python -m agent_env_core.sandbox.reaper FD`` and loads the one provider plugin it needs, when it needs it.
Where that fails it begins anew, as a new process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agent_env_core.errors import ConfigError, Unavailable, describe
from agent_env_core.sandbox.clocks import Jumps
from agent_env_core.sandbox.leases import (
    OWNER_LABEL,
    RUN_LABEL,
    Owner,
    Reaped,
    owner_is_dead,
    reap,
    why_expired,
)
from agent_env_core.sandbox.machine import process_is_stopped, process_start

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import SandboxProvider

log = logging.getLogger(__name__)

PATIENCE = 3600.0
"""Seconds a reaper goes on after its owner is gone where the provider doesn't answer, or can't end something: an engine
that restarts is back by then. Where nothing resists, it is done within seconds."""

QUIET_SWEEPS, QUIET_GAP = 3, 3.0
"""So many sweeps in a row, so many seconds apart, must find nothing: a create that the owner had under way may still
surface."""

LONGEST_PAUSE = 15.0
"""Seconds between two tries where something resists."""

EXPIRY_INTERVAL = 30.0
"""Seconds between two looks for sandboxes that outlived their lease."""

WAKE_INTERVAL = 10.0
"""Seconds between two looks whether the owner is stopped and its trainer gone."""

LOOK = 2.0
"""Seconds between two looks of the owner whether its reaper lives."""

BYE = b"bye\n"
ARMED = b"armed\n"


# ---------------------------------------------------------------------------------------------- the owner's side


_lives_for: Owner | None = None


def lives_for(pid: int) -> None:
    """Says that this process is to end when its trainer, process ``pid``, does.

    It sees to that itself, unless it is stopped (SIGSTOP) when the trainer goes: then its reaper wakes it. Counts for
    reapers that are started afterwards. A server that several trainers share names none: only the pipe that they all
    hold tells when the last is gone, and another reader of it would keep them from seeing the server end.
    """
    global _lives_for  # a fact about the process
    _lives_for = replace(Owner.current(), pid=pid, start=process_start(pid) or "unknown")


class ReaperProcess:
    """The owner's end of a reaper.

    Args:
        provider: The name that finds the provider's plugin.
        config: The settings its factory is given; must go into JSON.
        owner: Whose sandboxes the reaper watches: this process.
        run_id: Which of them.
    """

    def __init__(self, provider: str, config: Mapping[str, Any], owner: Owner, run_id: str) -> None:
        self._hello = {"provider": provider, "config": dict(config), "owner": str(owner), "run": run_id}
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Its process number, or None where it doesn't run."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Starts the process and tells it all it must know, without waiting for it.

        From here on the owner may die at any moment: what was said stays readable in the socket.

        Raises:
            OSError: No process can be started.
            ConfigError: The provider's settings don't go into JSON.
        """
        told = {**self._hello, "trainer": str(_lives_for or "")}
        try:
            hello = json.dumps(told, default=os.fspath).encode() + b"\n"
        except TypeError as exc:
            raise ConfigError(f"settings of a sandbox provider must be plain JSON values or paths: {exc}") from exc
        ours, theirs = socket.socketpair()
        try:
            ours.sendall(hello)
            ours.setblocking(False)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "agent_env_core.sandbox.reaper", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,  # and no other descriptor: a pipe it kept would never see its end
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self._channel = ours

    async def armed(self, timeout: float = 30.0) -> None:
        """Waits until the process says that it watches.

        Raises:
            Unavailable: It ended instead, or didn't answer within ``timeout`` seconds.
        """
        if self._channel is None:
            raise Unavailable("the reaper process was not started")
        answer = b""
        try:
            async with asyncio.timeout(timeout):
                answer = await asyncio.get_running_loop().sock_recv(self._channel, len(ARMED))
        except (OSError, TimeoutError):
            pass
        if answer != ARMED:
            raise Unavailable("the reaper process doesn't answer: what this process leaves when killed stays behind")

    async def keep(self) -> None:
        """Waits until the process watches, and starts another when it ends: killed, by the kernel for memory say.

        Raises:
            Unavailable: See :meth:`armed`.
            OSError: No process can be started.
        """
        while True:
            await self.armed()
            while self._process is not None and self._process.poll() is None:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(LOOK)
            log.warning("the reaper process has ended; another one takes its place")
            if self._channel is not None:
                self._channel.close()
            self.start()

    async def stop(self) -> None:
        """Sends the process away: nothing was left for it."""
        if self._channel is not None:
            try:
                self._channel.send(BYE)
            except OSError:  # it is gone already
                log.debug("the reaper was gone before it was sent away")
        await self._let_go()

    def release(self) -> None:
        """Lets go of the process and leaves it what is left: it sweeps, then exits by itself."""
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        if self._process is not None:  # someone must collect its exit, should this process live on
            threading.Thread(target=self._process.wait, name="agent-env-reaper", daemon=True).start()
        self._process = None

    async def _let_go(self) -> None:
        process, channel, self._process, self._channel = self._process, self._channel, None, None
        if channel is not None:
            channel.close()
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, 5)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


# ---------------------------------------------------------------------------------------------- the process


class _Watch:
    """Waits for one of three things: the owner says goodbye, the owner is gone, or time passed."""

    def __init__(self, channel: socket.socket, owner: Owner) -> None:
        self._channel, self._owner = channel, owner
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN | select.POLLHUP)
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open"):
            try:
                self._pidfd = os.pidfd_open(owner.pid)
            except OSError:
                return  # gone already, or an old kernel: next() looks by number
            self._poll.register(self._pidfd, select.POLLIN)

    def next(self, timeout: float) -> Literal["bye", "gone", "tick"]:
        """What happened; ``tick`` after ``timeout`` seconds of nothing."""
        ends = time.monotonic() + timeout
        while not owner_is_dead(self._owner):
            left = ends - time.monotonic()
            if left <= 0:
                return "tick"
            # A copy of the owner's end may live on in a forked child, so end of file isn't enough; a pidfd is.
            ready = dict(self._poll.poll(1000 * (left if self._pidfd is not None else min(left, 2.0))))
            if self._channel.fileno() in ready:
                break
        return "bye" if self._said_bye() else "gone"

    def _said_bye(self) -> bool:
        try:
            return self._channel.recv(64, socket.MSG_DONTWAIT).startswith(BYE)
        except OSError:  # nothing was said; or a reset, which is how the end looks when the owner left something unread
            return False


async def clear(provider: SandboxProvider, labels: Mapping[str, str], *, patience: float = PATIENCE) -> Reaped:
    """Ends everything that carries ``labels``, sweeping until several sweeps in a row find nothing.

    Args:
        provider: Whose sandboxes.
        labels: The dead owner's.
        patience: Seconds after which it gives up.

    Returns:
        What was ended, and what still stood when it gave up.
    """
    total, quiet, pause, ends = Reaped(), 0, 0.1, time.monotonic() + patience
    while True:
        try:
            found = await reap(provider, labels, why=lambda _: "its owner is gone")
            quiet = 0 if found else quiet + 1
            total.killed.update(found.killed)
            total.failed = found.failed
        except Exception as exc:  # the provider may be back at the next sweep
            quiet = 0
            total.failed = {"(list)": describe(exc)}
        pause = QUIET_GAP if quiet else min(2 * pause, LONGEST_PAUSE)
        if quiet >= QUIET_SWEEPS or time.monotonic() + pause > ends:
            return total
        await asyncio.sleep(pause)


def _with_provider(hello: Mapping[str, Any], work: Callable[[SandboxProvider], Awaitable[Reaped]]) -> Reaped:
    from agent_env_core.plugins import plugins

    provider = plugins().sandbox_provider(hello["provider"])(hello["config"])

    async def run() -> Reaped:
        try:
            return await work(provider)
        finally:
            await provider.aclose()

    return asyncio.run(run())


def _end_expired(hello: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Ends what outlived its lease; False where the provider does that by itself."""
    needed = True

    async def work(provider: SandboxProvider) -> Reaped:
        nonlocal needed
        needed = not provider.capabilities.ttl_enforced
        return await reap(provider, labels, why=why_expired) if needed else Reaped()

    try:
        _report(hello, _with_provider(hello, work))
    except Exception as exc:
        log.warning("%s: can't look for ended leases: %s", hello["provider"], describe(exc))
    return needed


def _report(hello: Mapping[str, Any], reaped: Reaped) -> None:
    for sandbox_id, reason in reaped.killed.items():
        log.info("%s: ended sandbox %s of %s: %s", hello["provider"], sandbox_id, hello["owner"], reason)
    for sandbox_id, reason in reaped.failed.items():
        log.error("%s: could not end sandbox %s of %s: %s", hello["provider"], sandbox_id, hello["owner"], reason)


def _log_to_file() -> None:
    """A reaper has no terminal; what it did to somebody's sandboxes must be found all the same."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "agent-env"
    handler = RotatingFileHandler(state / "reaper.log", maxBytes=1 << 18, backupCount=1, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(message)s"))
    state.mkdir(parents=True, exist_ok=True)
    logging.getLogger().addHandler(handler)
    log.setLevel(logging.INFO)
    logging.raiseExceptions = False  # a full disk must not end the sweep


def serve(channel: socket.socket) -> None:
    """Watches the owner at the other end of ``channel`` until there is nothing more to do."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = channel.recv(1)  # no further than the line: a goodbye may follow at once
        if not byte:
            return  # the owner died before it could create anything
        line += byte
    hello: dict[str, Any] = json.loads(line)
    owner = Owner.parse(hello["owner"])
    if owner is None:
        raise ValueError(f"not an owner: {hello['owner']!r}")
    labels = {OWNER_LABEL: hello["owner"], RUN_LABEL: hello["run"]}
    try:
        channel.sendall(ARMED)
    except OSError:
        log.debug("the owner went before the reaper was ready")
    watch, trainer = _Watch(channel, owner), Owner.parse(hello.get("trainer", ""))
    jumps, look = Jumps(), time.monotonic() + EXPIRY_INTERVAL
    while (event := watch.next(WAKE_INTERVAL)) == "tick":
        _wake(owner, trainer)
        if jumps.seen():  # leases that are alive look ended until their owner has renewed them
            look = max(look, time.monotonic() + EXPIRY_INTERVAL)
        elif time.monotonic() >= look:
            look = time.monotonic() + (EXPIRY_INTERVAL if _end_expired(hello, labels) else float("inf"))
    if event == "gone":
        try:
            _report(hello, _with_provider(hello, lambda provider: clear(provider, labels)))
        except Exception as exc:
            log.warning("%s: can't end what %s left: %s", hello["provider"], hello["owner"], describe(exc))
            _begin_anew(hello)


def _wake(owner: Owner, trainer: Owner | None) -> None:
    """Lets an owner go on that is stopped though its trainer is gone: it ends itself then, and all it has."""
    if trainer is not None and owner_is_dead(trainer) and process_is_stopped(owner.pid):
        log.info("process %d is stopped, and its trainer is gone: it is woken, to end", owner.pid)
        with contextlib.suppress(OSError):  # it has just ended
            os.kill(owner.pid, signal.SIGCONT)


def _begin_anew(hello: Mapping[str, Any]) -> None:
    """Puts a new process in the place of this one, after a while, which learns that the owner is gone.

    What is loaded only now may not fit what was loaded hours ago: somebody has upgraded the packages since.

    Raises:
        Unavailable: That was tried for long enough.
    """
    gives_up = hello.get("gives_up", time.monotonic() + PATIENCE)  # one clock for all processes of a machine
    if time.monotonic() > gives_up:
        raise Unavailable("this was tried for an hour; `agent-env gc` ends what is left")
    time.sleep(LONGEST_PAUSE)
    ours, theirs = socket.socketpair()
    ours.sendall(json.dumps({**hello, "gives_up": gives_up}).encode() + b"\n")
    ours.close()
    theirs.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, "-m", "agent_env_core.sandbox.reaper", str(theirs.detach())])  # noqa: S606 - no shell is wanted


def main() -> int:
    """The process: ignores what its owner's terminal sends, serves, and leaves."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        _log_to_file()
    except (OSError, RuntimeError):
        logging.getLogger().addHandler(logging.NullHandler())
    try:
        serve(socket.socket(fileno=int(sys.argv[1])))
    except Exception:
        log.exception("the reaper failed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

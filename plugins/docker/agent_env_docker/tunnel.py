"""The way to an engine on another machine by ssh: one connection of the user's own ``ssh``, and forwards through it.

The engine's socket is forwarded, and so is each port of a sandbox that is asked for: both stay on the loopback of the
two machines. Docker's SDK has ssh of its own, which needs another package, reads little of ``~/.ssh/config``, forwards
no ports, and carries no more than ten calls at once (``MaxSessions`` of the other side).

The connection ends with this process, however that ends: on the other side it runs ``cat``, whose input is a pipe
from here.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import random
import re
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

logger = logging.getLogger("agent_env_docker")

SOCKET = "/var/run/docker.sock"
_READY = b"agent-env is through"
_LOCAL = range(20_000, 32_768)
"""Below those that Linux gives out by itself: a port is needed again when a connection that broke is put up again."""
_TRIES = 50
_TOLD = 20  # lines of ssh's own that an error holds
_SECONDS = 20.0


class TunnelError(OSError):
    """There is no way through; the text is for people."""


class Tunnel:
    """One connection to one machine, made when it is first needed and again when it has broken.

    Args:
        host: Where, as ``DOCKER_HOST`` says it: ``ssh://[user@]machine[:port][/path/of/the/engine's/socket]``.
    """

    def __init__(self, host: str) -> None:
        parts = urlsplit(host)
        self._target = ["-p", str(parts.port)] if parts.port else []
        if parts.username:
            self._target += ["-l", parts.username]
        # Not `hostname`, which is in lower case: ssh's own config tells cases apart.
        self._target += ["--", re.sub(r":\d*\Z", "", parts.netloc.rpartition("@")[2]).strip("[]")]
        self._remote_socket = parts.path if parts.path.strip("/") else SOCKET
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[int, int] = {}
        self._lock = threading.Lock()

    def engine(self, timeout: float = _SECONDS) -> str:
        """The engine's address here, behind a connection that stands.

        Args:
            timeout: Seconds that connecting may take.

        Raises:
            TunnelError: The other machine can't be reached, or doesn't let this user in without a question.
        """
        with self._lock:
            self._connect(timeout)
            assert self._folder is not None
            return f"unix://{self._folder}/engine"

    def port(self, remote: int) -> int:
        """The port of this machine's loopback that leads to port ``remote`` of the other's.

        Raises:
            TunnelError: There is no connection, or it takes no more forwards.
        """
        with self._lock:
            self._connect(_SECONDS)
            if remote not in self._ports:
                self._ports[remote] = self._forward(remote)
            return self._ports[remote]

    def release(self, *remotes: int) -> None:
        """Closes what :meth:`port` has opened."""
        with self._lock:
            for remote in remotes:
                local = self._ports.pop(remote, None)
                if local is not None and self._stands():
                    self._tell("cancel", local, remote)

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            if self._process is not None:
                self._hang_up(self._process)
                self._process = None
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None
            self._ports.clear()

    # -- the connection

    def _stands(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _connect(self, timeout: float) -> None:
        if self._stands():
            return
        if self._process is not None:  # it has broken
            self._hang_up(self._process)
            self._process = None
        if self._folder is None:
            # Paths of sockets may have about a hundred characters; a user's own folder for such things may have more.
            self._folder = Path(tempfile.mkdtemp(prefix="agent-env-ssh-", dir="/tmp"))
        process = self._started(timeout)
        assert process.stdout is not None
        assert process.stderr is not None
        said: deque[str] = deque(maxlen=_TOLD)
        listening = threading.Thread(target=_listen, args=(process.stderr, said), name="agent-env-ssh", daemon=True)
        listening.start()
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        try:
            ready = any(line.strip() == _READY for line in process.stdout)
        finally:
            timer.cancel()
        if not ready:
            process.wait()
            listening.join(1.0)  # no longer: a jump host's ssh may hold the other end for minutes
            self._hang_up(process)
            raise TunnelError("; ".join(list(said)) or "ssh timed out")
        self._process = process

    def _started(self, timeout: float) -> subprocess.Popen[bytes]:
        program = shutil.which("ssh")
        if program is None:
            raise TunnelError("there is no `ssh` here (apt install openssh-client)")
        options = {
            "BatchMode": "yes",  # nobody is there to answer a question
            "ConnectTimeout": str(max(1, int(timeout))),
            "ControlMaster": "yes",
            "ControlPath": f"{self._folder}/control",
            "ControlPersist": "no",
            "ExitOnForwardFailure": "yes",
            "RemoteCommand": "none",
            "RequestTTY": "no",
            "ServerAliveInterval": "15",
            "StreamLocalBindMask": "0177",
            "StreamLocalBindUnlink": "yes",  # what a broken connection has left
        }
        forwards = [f"{self._folder}/engine:{self._remote_socket}"]
        forwards += [_forward(local, remote) for remote, local in self._ports.items()]
        with contextlib.suppress(OSError):
            Path(f"{self._folder}/control").unlink()
        return subprocess.Popen(
            [
                program,
                *(part for name, value in options.items() for part in ("-o", f"{name}={value}")),
                *(part for forward in forwards for part in ("-L", forward)),
                *self._target,
                f"echo; echo {_READY.decode()}; exec cat",
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which has sandboxes to end by this connection
        )  # fmt: skip

    def _hang_up(self, process: subprocess.Popen[bytes]) -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.terminate()
        process.wait()

    def _forward(self, remote: int) -> int:
        """Opens a port here. ``ssh`` takes no 0 for "any", and says of a port that is taken that it can't have it."""
        said = ""
        for local in random.sample(_LOCAL, _TRIES):
            said = self._tell("forward", local, remote)
            if not said:
                return local
            if not self._stands():
                break
        raise TunnelError(f"port {remote} can't be forwarded: {said}")

    def _tell(self, what: str, local: int, remote: int) -> str:
        """Has a forward opened or closed; returns why that failed, or nothing."""
        control = ("-o", f"ControlPath={self._folder}/control", "-O", what, "-L", _forward(local, remote))
        try:
            done = subprocess.run(
                ["ssh", *control, *self._target], capture_output=True, timeout=_SECONDS, check=False, text=True
            )
        except subprocess.TimeoutExpired:
            return "ssh does not answer"
        return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"ssh ended with {done.returncode}"


def _listen(stderr: IO[bytes], said: deque[str]) -> None:
    """Reads what ``ssh`` says, to its end.

    That's a line for each connection that a sandbox's port doesn't take; unread, a thousand of them would hold it up.
    """
    with stderr:
        for raw in stderr:
            if line := raw.decode(errors="replace").strip():
                said.append(line)
                logger.debug("ssh: %s", line)


def _forward(local: int, remote: int) -> str:
    return f"127.0.0.1:{local}:127.0.0.1:{remote}"


_tunnels: dict[str, Tunnel] = {}
_lock = threading.Lock()


def of(host: str) -> Tunnel:
    """This process's tunnel to a host."""
    with _lock:
        if host not in _tunnels:
            _tunnels[host] = Tunnel(host)
            atexit.register(_tunnels[host].close)
        return _tunnels[host]

"""A Docker engine of one's own, which may be stopped and killed: nobody else's containers are on it.

It needs root, ``dockerd`` and ``ip``. It keeps everything in one folder, and runs in a network namespace of its own: an
engine that shares one with the machine's removes that one's ``docker0``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ADDRESSES = "base=10.231.0.0/16,size=24"
"""What it gives its networks: apart from the default pools, which the machine's own engine may use."""

CLONE_NEWNET = 0x40000000  # of linux/sched.h

PATIENCE = 90.0
"""Seconds to wait for it to answer, or to end; it gives containers ten seconds to stop."""


def why_not() -> str:
    """Why none can be started here; empty where one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "an engine of its own needs root"
    missing = [name for name in ("docker", "dockerd", "ip") if shutil.which(name) is None]
    return f"{' and '.join(missing)} can't be found" if missing else ""


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """The calling thread, and all that it starts meanwhile, in a network namespace with nothing but a loopback.

    Raises:
        OSError: The machine allows none.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(libc.unshare(CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            enter(libc.setns(home, CLONE_NEWNET))
    finally:
        os.close(home)


class OwnEngine:
    """An engine in ``folder``; use it in :func:`own_network`.

    Attributes:
        host: What ``DOCKER_HOST`` must be to use it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.host = f"unix://{folder}/sock"
        (folder / "settings.json").write_text("{}")

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            RuntimeError: It doesn't.
        """
        folder = self._folder
        # A daemon that was killed takes its containerd along, which may stay as a zombie that the next one waits for.
        (folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        command = ["dockerd", "--host", self.host, "--pidfile", f"{folder}/pid", "--data-root", f"{folder}/data"]
        command += ["--exec-root", f"{folder}/exec", "--config-file", f"{folder}/settings.json"]
        command += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
        command += ["--default-address-pool", ADDRESSES]
        with open(folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        ends = time.monotonic() + PATIENCE
        while self._docker("version").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"dockerd doesn't answer:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.2)

    def load(self, image: str) -> None:
        """Takes an image over from the machine's own engine."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as save:
            subprocess.run(["docker", "--host", self.host, "load"], stdin=save.stdout, check=True, capture_output=True)

    def signal(self, number: signal.Signals) -> None:
        """Sends the daemon a signal; waits for its end where that is what the signal asks for."""
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGTERM, signal.SIGKILL):
            self._process.wait(PATIENCE)

    def containers(self) -> list[str]:
        """The names of all containers, running or not."""
        return self._docker("ps", "--all", "--format", "{{.Names}}").stdout.split()

    def command(self, *words: str) -> str:
        """What a ``docker`` command prints."""
        done = self._docker(*words)
        done.check_returncode()
        return done.stdout

    def close(self) -> None:
        """Ends it, with all that is on it."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.start()  # one that was killed has left containers running
        if names := self.containers():
            self._docker("rm", "--force", *names)
        self._docker("network", "prune", "--force")
        self.signal(signal.SIGTERM)
        self._unmount()

    def _unmount(self) -> None:
        """What a daemon that is killed has mounted stays, and would keep the folder from being removed."""
        mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for place in reversed([place for place in mounted if Path(place).is_relative_to(self._folder)]):
            subprocess.run(["umount", "--lazy", place], check=False)

    def _docker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "--host", self.host, *words], capture_output=True, text=True, check=False, timeout=PATIENCE
        )

"""The virtual clock of a deployed env: a time of its own that runs at a rate of its own.

It is kept here. A server that follows it is handed an address to ask for the time; since no provider lets a sandbox
reach us, that is answered by a small process in the server's own sandbox, and this clock takes over what the server
sets there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import TYPE_CHECKING

from agent_env_core.errors import EpisodeError, SandboxError, describe

if TYPE_CHECKING:
    from agent_env_core.envs.deployment import Deployment

FASTEST = 86_400.0
"""Virtual seconds in a real one at most: a day a second."""
FOLDER = "/data/agent-env-clock"
"""Where a clock's process in a sandbox notes what it was set to."""
PYTHONS = ("python3", "python")
NOT_FOUND = (126, 127)


@dataclass
class VirtualClock:
    """A clock that was set to a time and runs from there.

    Attributes:
        start: The time it was set to.
        rate: Virtual seconds in a real one; 0 holds it still.
    """

    start: datetime
    rate: float = 1.0
    _clock: Callable[[], float] = field(default=time.time, repr=False)
    _since: float = field(init=False, repr=False)
    _followers: list[Deployment] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._since = self._clock()

    def now(self) -> datetime:
        """The virtual time; it stops at the last one that can be written."""
        try:
            return self.start + timedelta(seconds=max(0.0, self._clock() - self._since) * self.rate)
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)

    async def current(self) -> datetime:
        """The virtual time, after a look at whether one of the env's servers set the clock."""
        for server in self._followers:
            try:
                noted = json.loads(await server.sandbox.read(f"{FOLDER}/clock.json"))
                start, rate, since = read_time(noted["virtual_time"]), float(noted["rate"]), float(noted["set_at"])
            except (OSError, SandboxError, ValueError, TypeError, KeyError):
                continue  # a sandbox that is gone, or a file that its programs spoiled: the last time known holds
            if since > self._since:
                self.start, self.rate, self._since = start, rate, since
        return self.now()

    async def serve(self, server: Deployment, *, timeout: float) -> str:
        """Has the time told in a server's sandbox; returns the address to ask.

        Raises:
            EpisodeError: It can't be: most often there is no Python 3 in the image.
        """
        source = resources.files(__package__).joinpath("clock_server.py").read_bytes()
        said = ""
        try:
            await server.sandbox.write(f"{FOLDER}/clock.json", b"{}")
            for python in PYTHONS:
                argv = [python, "-", write_time(self.now()), repr(self.rate)]
                found = await server.sandbox.exec(argv, cwd=FOLDER, stdin=source, timeout=timeout)
                if found.exit_code == 0:
                    self._followers.append(server)
                    return found.stdout.decode(errors="replace").strip() + "/clock/time"
                said = found.stderr.decode(errors="replace").strip()[-500:] or f"exit code {found.exit_code}"
                if found.exit_code not in NOT_FOUND:
                    break
        except (OSError, SandboxError) as exc:
            said = describe(exc)
        reason = f"the env {server.env.name!r} follows a clock, which needs Python 3 in its image: {said}"
        raise EpisodeError("setup", reason)


def read_time(text: str) -> datetime:
    """A time as RFC 3339 writes it, in UTC.

    Raises:
        ValueError: It is none, or says nothing of its zone.
    """
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError(f"{text!r} is no time of RFC 3339, such as 2026-03-01T09:00:00Z")


def write_time(moment: datetime) -> str:
    """A time as RFC 3339 writes it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")

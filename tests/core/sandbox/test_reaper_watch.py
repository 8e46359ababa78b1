"""What the reaper does while its owner lives: ended leases, a clock that jumps, an owner that is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from agent_env_core.sandbox import reaper
from agent_env_core.sandbox.leases import Owner
from agent_env_core.sandbox.machine import process_is_stopped, process_start


class TestServe:
    @pytest.fixture
    def looked(self, monkeypatch):
        """When it looked for ended leases, counted in the ticks before it; the owner goes after ten."""
        monkeypatch.setattr(reaper, "EXPIRY_INTERVAL", 0.0)
        self.ticks, looks = 0, []

        def tick(watch, seconds):
            self.ticks += 1
            return "tick" if self.ticks <= 10 else "bye"

        monkeypatch.setattr(reaper._Watch, "next", tick)
        monkeypatch.setattr(reaper, "_end_expired", lambda hello, labels: looks.append(self.ticks) or True)
        return looks

    def serve(self, **more):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            hello = {"provider": "fake", "config": {}, "owner": str(Owner.current()), "run": "run", **more}
            ours.sendall(json.dumps(hello).encode() + b"\n")
            reaper.serve(theirs)

    def test_it_looks_again_later_when_the_clock_has_jumped(self, looked, monkeypatch):
        monkeypatch.setattr(reaper.Jumps, "seen", lambda jumps: self.ticks == 4)
        self.serve()
        assert looked == [1, 2, 3, 5, 6, 7, 8, 9, 10]

    @pytest.mark.usefixtures("looked")
    @pytest.mark.parametrize("trainer", ["dead", "alive", "none"])
    def test_a_stopped_owner_is_woken_where_its_trainer_is_gone(self, trainer):
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            owner = replace(Owner.current(), pid=process.pid, start=process_start(process.pid))
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            named = {"alive": str(Owner.current()), "dead": str(replace(Owner.current(), start="1")), "none": ""}
            self.serve(owner=str(owner), trainer=named[trainer])
            assert process_is_stopped(process.pid) is (trainer != "dead")
            process.kill()

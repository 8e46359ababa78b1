from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from agent_env_process.procs import Known, end_all, members, send

#: Leaves a child in a session of its own, one without the mark, and one of both kinds; says their numbers.
FAMILY = """
import os, subprocess, sys
def child(**how):
    return subprocess.Popen(["sleep", "600"], **how).pid
bare = {"PATH": os.environ["PATH"]}
print(os.getpid(), child(), child(start_new_session=True), child(env=bare), child(env=bare, start_new_session=True))
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture
def mark(request):
    return f"AGENT_ENV_TEST={os.getpid()}-{request.node.name}"


@pytest.fixture
def family(mark):
    name, _, value = mark.partition("=")
    process = subprocess.Popen(
        [sys.executable, "-c", FAMILY],
        env={**os.environ, name: value},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    numbers = [int(word) for word in process.stdout.readline().split()]
    yield process, numbers
    for number in numbers:
        if psutil.pid_exists(number):
            os.kill(number, signal.SIGKILL)
    process.communicate()


def running(numbers):
    return [n for n in numbers if psutil.pid_exists(n) and psutil.Process(n).status() != psutil.STATUS_ZOMBIE]


def test_a_whole_tree_is_found_and_ended(family, mark):
    process, numbers = family
    assert {known.pid for known in members(mark, Known.look(process.pid))} == set(numbers)
    assert end_all(mark, Known.look(process.pid)) == []
    assert running(numbers) == []


def test_without_its_leader_what_carries_the_mark_is_ended(family, mark):
    process, numbers = family
    leader = Known.look(process.pid)
    process.kill()
    process.wait()
    assert end_all(mark, leader) == []
    assert running(numbers[1:3]) == []


def test_a_number_that_is_used_again_is_never_signalled(family, mark):
    process, numbers = family
    old = replace(Known.look(process.pid), start="1")  # what had this number before
    assert not old.alive
    send(old, signal.SIGKILL)
    assert end_all("AGENT_ENV_TEST=another", old) == []
    assert running(numbers) == numbers


def test_a_mark_must_be_whole(family, mark):
    assert members(mark[:-1]) == []
    assert members("AGENT_ENV_TEST=") == []


def test_this_process_is_never_among_them(mark, family):
    me = Known.look(os.getpid())
    assert me.pid not in {known.pid for known in members(mark, me)}


def test_one_that_wont_end_is_named(mark, family, monkeypatch):
    process, numbers = family
    monkeypatch.setattr("agent_env_process.procs.send", lambda process, number: None)
    assert set(end_all(mark, Known.look(process.pid), patience=0.05)) == set(numbers)


def test_a_signal_to_nobody_is_nothing():
    ended = subprocess.Popen([sys.executable, "-c", ""])
    known = Known.look(ended.pid)
    ended.wait()
    send(known, signal.SIGKILL)
    assert Known.look(ended.pid) is None
    assert not known.alive

import asyncio
import os
import secrets
import subprocess

import pytest

from agent_env_core.sandbox.commands import KILL_TREE, TOKEN_VARIABLE, Kept, finish


def test_a_long_output_keeps_its_beginning_and_says_what_is_missing():
    kept = Kept(4)
    kept.add(b"abc")
    kept.add(b"def")
    kept.add(b"g")
    assert kept.value() == b"abcd\n[agent-env: 3 more bytes were dropped]\n"


def test_an_output_that_fits_has_no_note():
    kept = Kept(4)
    kept.add(b"abcd")
    assert kept.value() == b"abcd"


@pytest.mark.parametrize(
    ("text", "number", "left"),
    [(b"12\nout", 12, b"out"), (b"12", None, b"12"), (b"sh: no\n1\n", None, b"sh: no\n1\n")],
)
def test_the_number_that_a_shell_says_first_is_no_output(text, number, left):
    kept = Kept(100)
    kept.add(text)
    assert (kept.take_number(), kept.value()) == (number, left)


def test_a_tree_is_killed_by_its_token_and_by_its_session():
    token = secrets.token_hex(12)
    tree = subprocess.Popen(
        ["sh", "-c", "env -i sleep 300 & echo ready; sleep 300; :"],  # the first has no token, but the session
        env={**os.environ, TOKEN_VARIABLE: token}, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with tree:
        assert tree.stdout is not None
        assert tree.stdout.readline() == b"ready\n"
        killed = subprocess.run(["sh", "-c", KILL_TREE, "sh", token, str(tree.pid)], check=False, timeout=60)
        assert killed.returncode == 0
        assert tree.stdout.read() == b""  # which all of them held open


async def test_an_ending_goes_on_where_the_waiting_is_cancelled():
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ending() -> None:
        begun.set()
        await may_end.wait()
        ended.set()

    waiting = asyncio.create_task(finish(ending()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    may_end.set()
    await asyncio.wait_for(ended.wait(), 60)

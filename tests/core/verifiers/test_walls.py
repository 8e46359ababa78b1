"""What code of a bundle can't get at: the server's environment and memory, and those of other verifiers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from agent_env_core.verifiers.pool import VerifierJob, VerifierPool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

SERVER = """
import asyncio, json, os, sys
from pathlib import Path
from agent_env_core.verifiers import walls
from agent_env_core.verifiers.pool import VerifierJob, VerifierPool

async def main():
    walls.hide()
    pool = VerifierPool()
    await pool.start()
    found = await pool.verify(VerifierJob(Path(sys.argv[1]), "", "", arguments={"server": os.getpid()}))
    await pool.aclose()
    print(json.dumps(found), flush=True)

asyncio.run(main())
"""
PEEKING = """
import os, subprocess, sys

def told(work):
    try:
        return work()
    except OSError as exc:
        return type(exc).__name__

async def verify(mcp_url, server):
    with open(f"/proc/{os.getppid()}/stat") as stat:
        worker = int(stat.read().rpartition(")")[2].split()[1])
    seen = {}
    for name, pid in (("server", server), ("worker", worker), ("supervisor", os.getppid())):
        seen[name] = [
            told(lambda: len(open(f"/proc/{pid}/environ", "rb").read())),
            told(lambda: open(f"/proc/{pid}/mem", "rb").close()),
            told(lambda: os.readlink(f"/proc/{pid}/fd/1")),
        ]
    code = f"import sys; sys.stdout.write(open('/proc/{server}/environ').read())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return [{"seen": seen, "by a child": "hush" in child.stdout, "told": child.stderr.splitlines()[-1:]}]
"""


def test_other_processes_are_closed_to_a_verifier(tmp_path: Path):
    import subprocess

    file = tmp_path / "verify.py"
    file.write_text(PEEKING)
    found = subprocess.run(
        [sys.executable, "-c", SERVER, str(file)], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "SERVER_SECRET": "hush"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    (row,) = json.loads(found.stdout)
    assert row["seen"] == {name: ["PermissionError"] * 3 for name in ("server", "worker", "supervisor")}
    assert row["by a child"] is False
    assert "PermissionError" in row["told"][0]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_memory_stays_flat_over_1000_verifications(tmp_path: Path):
    file = tmp_path / "verify.py"
    file.write_text("async def verify(mcp_url):\n return [{'result': True, 'evidence': 'x' * 10_000}]\n")
    job = VerifierJob(file, "http://127.0.0.1:9/mcp", "http://127.0.0.1:9")
    pool = VerifierPool()
    await pool.start()
    assert pool._process is not None
    processes = [psutil.Process(), psutil.Process(pool._process.pid)]

    def used() -> list[int]:
        return [process.memory_info().rss for process in processes]

    async def verify(times: int) -> None:
        for _ in range(times // 10):
            await asyncio.gather(*(pool.verify(job) for _ in range(10)))

    try:
        await verify(100)
        before, descriptors = used(), processes[0].num_fds()
        await verify(1000)
        grown = [after - ago for after, ago in zip(used(), before, strict=True)]
        assert max(grown) < 4 << 20, grown
        assert processes[0].num_fds() <= descriptors
        assert processes[1].children(recursive=True) == []
    finally:
        await pool.aclose()

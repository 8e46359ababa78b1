"""Verifiers in their own processes: isolated, bounded, and never a score for what went wrong."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from agent_env_core.errors import EpisodeError
from agent_env_core.verifiers.pool import VerifierJob, VerifierPool
from agent_env_core.verifiers.record import write_message, write_run

pytestmark = pytest.mark.asyncio(loop_scope="module")

Verify = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[VerifierPool]:
    os.environ["SERVER_SECRET"] = "hush"
    pool = VerifierPool(timeout=60.0)
    await pool.start()
    yield pool
    await pool.aclose()
    del os.environ["SERVER_SECRET"]


@pytest.fixture
def verify(pool: VerifierPool, tmp_path: Path) -> Verify:
    """Runs a verifier given as text."""

    async def run(code: str, **job: Any) -> list[dict[str, Any]]:
        file = tmp_path / "verify.py"
        file.write_text(textwrap.dedent(code))
        return await pool.verify(VerifierJob(file, "http://127.0.0.1:9/mcp", "http://127.0.0.1:9", **job))

    return run


async def test_rows_come_back_as_they_are(verify: Verify):
    rows = await verify("""
        async def verify(mcp_url):
            return [{"id": "a", "result": True, "score": 0.5, "url": mcp_url, "deep": {"x": [1, None, "ü"]}}]
    """)
    assert rows == [
        {"id": "a", "result": True, "score": 0.5, "url": "http://127.0.0.1:9/mcp", "deep": {"x": [1, None, "ü"]}}
    ]


async def test_the_run_is_handed_over_where_it_is_asked_for(verify: Verify):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    record = write_run([(write_message("go", at, "user"), write_message("gone", at, "agent"))])
    code = """
        async def verify(mcp_url, run=None):
            return [{"result": run.turns[0].reply.text == "gone"}]
    """
    assert await verify(code, run=record) == [{"result": True}]


async def test_numbers_that_json_has_not_are_kept_as_evidence(verify: Verify):
    code = """
        async def verify(mcp_url):
            return [{"result": True, "seen": float("nan"), "deep": [float("-inf")]}]
    """
    assert await verify(code) == [{"result": True, "seen": "NaN", "deep": ["-Infinity"]}]


async def test_one_tls_context_is_ready_and_no_two_clients_share_one(verify: Verify):
    code = """
        import ssl
        import time
        import httpx

        async def verify(mcp_url):
            began = time.process_time()
            first = httpx.create_ssl_context()
            ready = time.process_time() - began
            second = httpx.create_ssl_context()
            made = time.process_time() - began - ready
            own = ssl.create_default_context()
            told = {"apart": len({id(first), id(second), id(own)}) == 3, "quick": ready < made / 4}
            return [{"result": first.verify_mode == second.verify_mode == ssl.CERT_REQUIRED, **told}]
    """
    for _ in range(2):  # each fork has its own
        assert await verify(code) == [{"result": True, "apart": True, "quick": True}]


async def test_known_libraries_can_be_imported(verify: Verify):
    code = """
        import httpx, mcp
        from agentenv_protocol import client
        import dataclasses

        @dataclasses.dataclass
        class Needs:
            its: "module"

        async def verify(mcp_url):
            return [{"result": callable(client.get_data)}]
    """
    assert await verify(code) == [{"result": True}]


async def test_numbers_of_other_libraries_keep_their_meaning(verify: Verify):
    code = """
        from decimal import Decimal

        class Odd:
            def __bool__(self):
                return True
            def __repr__(self):
                return "odd"

        async def verify(mcp_url):
            return [{"result": Odd(), "score": Decimal("0.5"), "weight": Decimal(2), "seen": Odd(), ("a", 1): 2}]
    """
    assert await verify(code) == [{"result": 1, "score": 0.5, "weight": 2.0, "seen": "odd"}]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("async def verify(u):\n raise ValueError('boom')", r"raised ValueError: boom \(verify\.py, line 2\)"),
        ("async def verify(u):\n raise KeyError", r"raised KeyError \(verify\.py, line 2\)"),
        ("import nothing_here", r"raised ModuleNotFoundError: .*nothing_here.* \(verify\.py, line 1\)"),
        ("def (", r"raised SyntaxError: invalid syntax \(verify\.py, line 1\)"),
        ("x = 1", "defines no function verify"),
        ("verify = 1", "defines no function verify"),
        ("def verify(u):\n return []", "must be an async function"),
        ("async def verify():\n return []", "raised TypeError: .*takes 0 positional arguments"),
        ("async def verify(u):\n return None", "must return a list of dicts, and returned NoneType"),
        ("async def verify(u):\n return ({},)", "must return a list of dicts, and returned tuple"),
        ("async def verify(u):\n return [1]", "must return dicts, and row 0 is int: 1"),
        ("async def verify(u):\n return [{'score': float('nan')}]", "score of row 0 must be a finite number"),
        ("async def verify(u):\n return [{'score': '1'}]", "score of row 0 must be a finite number"),
        ("async def verify(u):\n row = {}\n row['x'] = row\n return [row]", "row 0 that can't be written as JSON"),
        (
            "async def verify(u):\n return [{'x': 'y' * 9_000_000}]",
            "returned 9000025 bytes of rows; 8 MiB is the limit",
        ),
        ("import sys\nasync def verify(u):\n sys.exit(3)", r"called sys\.exit\(3\)"),
        ("import sys\nsys.exit('at import')", r"called sys\.exit\('at import'\)"),
        ("async def verify(u):\n raise KeyboardInterrupt", "raised KeyboardInterrupt"),
        (
            "import os\nasync def verify(u):\n print('words', flush=True)\n os._exit(4)",
            "ended its process with exit code 4 before it returned; its output ended with: words",
        ),
        ("import os\nasync def verify(u):\n os.kill(os.getpid(), 11)", "was killed by SIGSEGV before it returned"),
        ("import os\nasync def verify(u):\n os.kill(os.getpid(), 9)", r"was killed by SIGKILL .*\(out of memory\?\)"),
        ("import os\nasync def verify(u):\n os.closerange(0, 99)\n return []", "ended its process|raised"),
        (
            "import asyncio\nasync def verify(u):\n async with asyncio.TaskGroup() as g:\n  g.create_task(bad())\n"
            "async def bad():\n raise ValueError('inner')",
            r"raised ValueError: inner \(verify\.py, line 6\)",
        ),
    ],
)
async def test_what_goes_wrong_is_no_score(verify: Verify, code: str, said: str):
    with pytest.raises(EpisodeError, match=said) as caught:
        await verify(code)
    assert caught.value.phase == "verify"
    assert not caught.value.retryable
    assert re.match(r"\S+/verify\.py\b", caught.value.reason)


@pytest.mark.parametrize("body", ["b'1'", "b'{}'", "b'{\"fault\": 1}'", "b'[' * 1_000_000", "b'\\xff'"])
async def test_an_answer_that_a_verifier_forges_is_no_score(verify: Verify, body: str):
    code = f"""
        import os, struct

        async def verify(mcp_url):
            body = {body}
            os.write(3, struct.pack("!I", len(body)))
            for at in range(0, len(body), 4096):
                os.write(3, body[at : at + 4096])
            os._exit(0)
    """
    with pytest.raises(EpisodeError, match=r"the process of \S+/verify\.py was lost"):
        await verify(code)


async def test_an_env_that_cant_be_reached_may_be_tried_again(verify: Verify):
    code = """
        from agentenv_protocol import client

        async def verify(mcp_url):
            return await client.get_data(mcp_url.removesuffix("/mcp"))
    """
    with pytest.raises(EpisodeError, match="raised ConnectError") as caught:
        await verify(code)
    assert caught.value.retryable


@pytest.mark.parametrize(
    "wait",
    [
        "import time\nasync def verify(u):\n time.sleep(600)",
        "import asyncio\nasync def verify(u):\n await asyncio.sleep(600)",
        "import signal\nasync def verify(u):\n signal.pthread_sigmask(0, range(1, 32))\n while True: pass",
        "import os\nasync def verify(u):\n while True: os.write(1, b'x' * 65536)",
    ],
)
async def test_a_deadline_ends_it(verify: Verify, pool: VerifierPool, monkeypatch: pytest.MonkeyPatch, wait: str):
    monkeypatch.setattr(pool, "timeout", 0.5)
    with pytest.raises(EpisodeError, match=r"verify\.py didn't return within 0\.5s"):
        await verify(wait)


async def test_a_gigabyte_of_output_does_no_harm(verify: Verify):
    code = """
        import os

        async def verify(mcp_url):
            for _ in range(1000):
                os.write(1, b"x" * 1_000_000)
            return [{"result": True}]
    """
    assert await verify(code) == [{"result": True}]


async def test_nothing_leaks_from_one_run_to_the_next(verify: Verify):
    code = """
        import builtins, os, sys
        seen = getattr(builtins, "seen", 0)
        builtins.seen = seen + 1

        async def verify(mcp_url):
            open("left-behind", "w").close()
            return [{"seen": seen, "files": os.listdir("."), "modules": "this" in sys.modules}]
    """
    for _ in range(2):
        assert await verify(code) == [{"seen": 0, "files": ["left-behind"], "modules": False}]


async def test_it_sees_no_secret_and_no_descriptor_of_the_server(verify: Verify, pool: VerifierPool):
    code = """
        import os

        async def verify(mcp_url):
            return [{"env": sorted(os.environ), "cwd": os.getcwd(), "tmp": os.environ["TMPDIR"],
                     "links": [os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2, 3)],
                     "more": [n for n in range(4, 64) if os.path.exists(f"/proc/self/fd/{n}")]}]
    """
    (row,) = await verify(code)
    assert "SERVER_SECRET" not in row["env"]
    assert row["cwd"] == row["tmp"] != os.getcwd()
    assert os.path.basename(row["cwd"]) not in os.listdir(os.path.dirname(row["cwd"]))
    assert row["links"][0] == "/dev/null"
    assert all(link.startswith("pipe:") for link in row["links"][1:])
    assert len(row["more"]) <= 3  # the event loop's own


async def test_nothing_that_it_starts_outlives_it(verify: Verify):
    code = """
        import os, subprocess, sys

        async def verify(mcp_url):
            child = subprocess.Popen(["sleep", "600"])
            daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
            return [{"pids": [os.getpid(), child.pid, daemon.pid]}]
    """
    (row,) = await verify(code)
    assert not [pid for pid in row["pids"] if psutil.pid_exists(pid)]


async def test_nothing_is_written_beside_it(verify: Verify, tmp_path: Path):
    await verify("async def verify(mcp_url):\n return []")
    assert os.listdir(tmp_path) == ["verify.py"]


async def test_a_cancelled_verification_is_ended(verify: Verify, tmp_path: Path):
    code = """
        import os, pathlib, time

        async def verify(mcp_url):
            pathlib.Path({path!r}).write_text(str(os.getpid()))
            time.sleep(600)
    """
    mark = tmp_path / "pid"
    running = asyncio.create_task(verify(code.format(path=str(mark))))
    async with asyncio.timeout(30):
        while not (mark.exists() and mark.read_text()):  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(30):
        while psutil.pid_exists(int(mark.read_text())):  # noqa: ASYNC110 - another process ends
            await asyncio.sleep(0.005)


async def test_many_at_once(verify: Verify):
    code = "async def verify(mcp_url):\n return [{'result': True}]"
    assert await asyncio.gather(*(verify(code) for _ in range(32))) == [[{"result": True}]] * 32


async def test_headers_go_to_the_env_and_nowhere_else(verify: Verify):
    code = """
        import httpcore, httpx

        async def verify(mcp_url):
            sent = []
            async def answer(self, request):
                sent.append(dict((k.lower(), v) for k, v in request.headers))
                raise httpcore.ConnectError("no network here")
            httpcore.AsyncConnectionPool.handle_async_request = answer
            async with httpx.AsyncClient() as client:
                for url in (mcp_url, "http://elsewhere.invalid/"):
                    try:
                        await client.get(url)
                    except httpx.ConnectError:
                        pass
            return [{"tokens": [(headers.get(b"x-token") or b"").decode() for headers in sent]}]
    """
    assert await verify(code, headers={"X-Token": "t"}) == [{"tokens": ["t", ""]}]


async def test_a_worker_that_was_killed_is_replaced(tmp_path: Path):
    file = tmp_path / "verify.py"
    file.write_text("async def verify(mcp_url):\n return [{'result': True}]")
    job = VerifierJob(file, "http://127.0.0.1:9/mcp", "http://127.0.0.1:9")
    pool = VerifierPool()
    try:
        assert await pool.verify(job) == [{"result": True}]
        assert pool._process is not None
        pool._process.kill()
        await pool._process.wait()
        assert await pool.verify(job) == [{"result": True}]
    finally:
        await pool.aclose()
    with pytest.raises(EpisodeError, match="closing"):
        await pool.verify(job)


async def test_a_worker_that_cant_start_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agent_env_core.verifiers.pool._environment", lambda: {"PYTHONHOME": "/nowhere"})
    pool = VerifierPool()
    with pytest.raises(EpisodeError, match=r"the verifier process doesn't start: .*Python"):
        await pool.start()
    await pool.aclose()


SERVER = """
import asyncio, sys
from pathlib import Path
from agent_env_core.verifiers.pool import VerifierJob, VerifierPool

async def main():
    pool = VerifierPool()
    await pool.start()
    print(pool._process.pid, flush=True)
    await pool.verify(VerifierJob(Path(sys.argv[1]), "http://127.0.0.1:9/mcp", "http://127.0.0.1:9"))

asyncio.run(main())
"""
WAITING = """
import os, subprocess, time

async def verify(mcp_url):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with open({path!r}, "w") as mark:
        mark.write(f"{{os.getpid()}} {{os.getppid()}} {{child.pid}} end")
    time.sleep(600)
"""


async def test_nothing_outlives_a_server_that_is_killed(tmp_path: Path):
    file, mark = tmp_path / "verify.py", tmp_path / "pids"
    file.write_text(WAITING.format(path=str(mark)))
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, str(file), stdout=asyncio.subprocess.PIPE
    )  # fmt: skip
    assert server.stdout is not None
    worker = int(await server.stdout.readline())
    async with asyncio.timeout(30):
        while not (mark.exists() and mark.read_text().endswith("end")):  # noqa: ASYNC110 - another process tells
            await asyncio.sleep(0.01)
    server.kill()
    await server.wait()
    pids = [worker, *map(int, mark.read_text().split()[:-1])]
    async with asyncio.timeout(30):
        while left := [pid for pid in pids if psutil.pid_exists(pid)]:  # noqa: ASYNC110 - other processes end
            await asyncio.sleep(0.01)
    assert not left

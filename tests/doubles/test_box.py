"""The machine that stands behind the doubles of clouds."""

from __future__ import annotations

import asyncio
import os.path
from pathlib import Path

import pytest
from box import Box, Root, box, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def exists(path: str) -> bool:
    return os.path.exists(path)


async def output(made: Box, *argv: str, **settings: str) -> bytes:
    process = await made.spawn(argv, **settings)
    process.stdin.close()
    out = await process.stdout.read()
    assert await process.wait() == 0, await process.stderr.read()
    return out


async def test_two_boxes_share_neither_files_nor_processes_nor_ports() -> None:
    async with box() as one, box() as other:
        for made, text in ((one, "one"), (other, "other")):
            serve = f"mkdir -p /srv/www; cd /srv/www; echo {text} > index.html; exec python3 -m http.server 8000"
            await made.spawn(["sh", "-c", serve])
        ports = [await made.forward(8000) for made in (one, other)]
        assert [await answer(port) for port in ports] == [b"one\n", b"other\n"]
        assert not exists("/srv/www")
        assert b"http.server" in await output(one, "sh", "-c", "cat /proc/[0-9]*/cmdline")
        pids = await output(one, "sh", "-c", "ls /proc | grep -c '^[0-9]'")
        assert int(pids) < 10


async def answer(port: int, *lines: str) -> bytes:
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write("\r\n".join(("GET /index.html HTTP/1.0", *lines, "", "")).encode())
        reply = await reader.read()
        writer.close()
        if reply and b" 502 " not in reply:
            return reply.partition(b"\r\n\r\n")[2] or reply.split()[1]
        await asyncio.sleep(0.01)


async def test_a_forwarded_port_may_ask_for_a_header() -> None:
    async with box() as made:
        await made.spawn(["sh", "-c", "cd /srv; echo in > index.html; exec python3 -m http.server 8000"])
        port = await made.forward(8000, head=b"authorization: bearer it")
        assert await answer(port, "Authorization: Bearer it") == b"in\n"
        assert await answer(port, "Authorization: Bearer other") == b"401"


async def test_what_was_written_becomes_a_layer(tmp_path: Path) -> None:
    first = await Box.start()
    await output(first, "sh", "-c", "mkdir /srv/kit; echo here > /srv/kit/file; rm -f /etc/hostname")
    root = await first.commit(tmp_path / "layer")
    second = await Box.start(Root(root.layer, {"GREETING": "hello"}, "/srv/kit"))
    try:
        said = await output(second, "sh", "-c", 'cat file; echo "$GREETING"; ls /etc/hostname || true')
        assert said == b"here\nhello\n"
        assert await second.inside(lambda: Path("/srv/kit/file").read_text()) == "here\n"
    finally:
        await second.stop()


async def test_the_end_ends_everything() -> None:
    made = await Box.start()
    process = await made.spawn(["sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600"])
    await process.stdout.readline()
    assert exists(f"/proc/{process.pid}")
    await made.stop()
    assert process.returncode == -9
    assert not exists(f"/proc/{process.pid}")
    with pytest.raises(RuntimeError):
        await made.spawn(["true"])


async def test_a_missing_program_is_an_error_of_the_start() -> None:
    async with box() as made:
        with pytest.raises(FileNotFoundError):
            await made.spawn(["no-such-program"])


async def test_limits_hold() -> None:
    made = await Box.start(cpu=0.5, memory_mb=256)
    try:
        take = await made.spawn(["python3", "-c", "bytearray(2**29)"])
        assert await take.wait() != 0
        burn = "import time; b = time.monotonic()\nwhile time.monotonic() < b + 1: pass\nprint(time.process_time())"
        assert float(await output(made, "python3", "-c", burn)) < 0.75
    finally:
        await made.stop()

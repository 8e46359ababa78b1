"""Checks of ``exec``."""

from __future__ import annotations

import asyncio
import os

import pytest

from agent_env_core.testing.checks.base import Boxes, Kit, eventually, exists, runs

ENOUGH = 60.0
"""Seconds that a command may take which ends at once: a hang must fail, a slow machine must not."""


class CommandChecks(Kit):
    """Commands: argv, streams, environment, folder, input, output, deadlines, signals."""

    async def test_exec_gives_the_code_and_both_streams(self, boxes: Boxes) -> None:
        box = await boxes.make()
        done = await box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=ENOUGH)
        assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (3, b"out\n", b"err\n", False)

    async def test_exec_takes_arguments_as_they_are(self, boxes: Boxes) -> None:
        box = await boxes.make()
        arguments = ["a b", "$HOME", "*", "'", '"', "", "ü", "\\n", "-n", "; echo no"]
        done = await box.exec(["printf", "%s|", *arguments], timeout=ENOUGH)
        assert done.stdout.decode() == "|".join(arguments) + "|"

    async def test_exec_sees_the_env_of_the_spec_and_of_the_call(self, boxes: Boxes) -> None:
        box = await boxes.make(env={"ONE": "spec", "TWO": "spec"})
        show = ["sh", "-c", 'echo "$ONE $TWO $THREE"']
        assert (await box.exec(show, env={"TWO": "call", "THREE": "a b"}, timeout=ENOUGH)).stdout == b"spec call a b\n"
        assert (await box.exec(show, timeout=ENOUGH)).stdout == b"spec spec \n", "the env of one call stayed"

    async def test_exec_sees_no_variable_of_this_process(self, boxes: Boxes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AGENT_ENV_KIT_SECRET", "s3cret-value")
        box = await boxes.make()
        seen = (await box.exec(["env"], timeout=ENOUGH)).stdout.decode()
        assert "s3cret-value" not in seen
        names = {line.partition("=")[0] for line in seen.splitlines()}
        suspects = {name for name in os.environ if any(word in name for word in ("TOKEN", "SECRET", "PASSWORD", "KEY"))}
        assert not names & suspects

    async def test_exec_runs_in_the_specs_folder(self, boxes: Boxes) -> None:
        box = await boxes.make(workdir="/tmp")
        await box.write("/tmp/kit-here", b"yes")
        assert (await box.exec(["cat", "kit-here"], timeout=ENOUGH)).stdout == b"yes"

    async def test_exec_runs_in_the_calls_folder(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/inner/here", b"yes")
        assert (await box.exec(["cat", "here"], cwd="/kit/inner", timeout=ENOUGH)).stdout == b"yes"

    async def test_exec_of_a_missing_program_is_a_result(self, boxes: Boxes) -> None:
        box = await boxes.make()
        assert (await box.exec(["no-such-program-anywhere"], timeout=ENOUGH)).exit_code in (126, 127)

    async def test_exec_feeds_input_of_any_size(self, boxes: Boxes) -> None:
        box = await boxes.make()
        done = await box.exec(["wc", "-c"], stdin=b"\0x" * 1_000_000, timeout=ENOUGH)
        assert done.stdout.strip() == b"2000000"

    async def test_exec_without_input_is_at_its_end_at_once(self, boxes: Boxes) -> None:
        box = await boxes.make()
        done = await box.exec(["cat"], timeout=ENOUGH)
        assert (done.exit_code, done.stdout, done.timed_out) == (0, b"", False)

    async def test_exec_may_leave_its_input_unread(self, boxes: Boxes) -> None:
        box = await boxes.make()
        assert (await box.exec(["true"], stdin=b"x" * 1_000_000, timeout=ENOUGH)).exit_code == 0

    async def test_exec_gives_big_output_of_both_streams(self, boxes: Boxes) -> None:
        box = await boxes.make()
        script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 200000 /dev/zero | tr '\\0' y >&2"
        done = await box.exec(["sh", "-c", script], timeout=ENOUGH)
        assert (len(done.stdout), len(done.stderr)) == (3_000_000, 200_000)
        assert set(done.stdout) == {ord("x")}
        assert set(done.stderr) == {ord("y")}

    async def test_exec_gives_bytes_not_text(self, boxes: Boxes) -> None:
        box = await boxes.make()
        assert (await box.exec(["printf", r"\377\000\015\012"], timeout=ENOUGH)).stdout == b"\xff\x00\r\n"

    async def test_exec_ends_with_its_command_whoever_holds_the_output(self, boxes: Boxes) -> None:
        box = await boxes.make()
        done = await box.exec(["sh", "-c", "sleep 600 & echo done"], timeout=ENOUGH)
        assert (done.exit_code, done.stdout, done.timed_out) == (0, b"done\n", False)

    async def test_a_deadline_keeps_the_output_and_ends_the_whole_tree(self, boxes: Boxes) -> None:
        box = await boxes.make()
        script = "echo part; sleep 600 & echo $!; sh -c 'sleep 600; true' & echo $!; wait"
        done = await box.exec(["sh", "-c", script], timeout=1)
        assert (done.timed_out, done.exit_code) == (True, None)
        first, *children = done.stdout.split()
        assert first == b"part"
        assert len(children) == 2
        assert [await runs(box, int(pid)) for pid in children] == [False, False]
        assert (await box.exec(["true"], timeout=ENOUGH)).exit_code == 0, (
            "the sandbox must outlive a command's deadline"
        )

    async def test_a_cancelled_exec_ends_its_command(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/x", b"")
        script = "echo $$ > part; mv part pid; exec sleep 600"
        call = asyncio.create_task(box.exec(["sh", "-c", script], cwd="/kit"))
        await eventually(lambda: exists(box, "/kit/pid"))
        pid = int(await box.read("/kit/pid"))
        assert await runs(box, pid)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

        async def ended() -> bool:
            return not await runs(box, pid)

        await eventually(ended)

    @pytest.mark.parametrize(("signal", "code"), [("KILL", 137), ("TERM", 143)])
    async def test_exec_killed_by_a_signal_gives_128_and_its_number(self, boxes: Boxes, signal: str, code: int) -> None:
        box = await boxes.make()
        assert (await box.exec(["sh", "-c", f"kill -{signal} $$; sleep 600"], timeout=ENOUGH)).exit_code == code

    async def test_execs_run_at_the_same_time(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/x", b"")
        meet = 'touch "at-$0"; until [ "$(ls | grep -c at-)" -ge 6 ]; do sleep 0.05; done; echo "$0"'
        calls = (box.exec(["sh", "-c", meet, str(number)], cwd="/kit", timeout=ENOUGH) for number in range(6))
        assert [done.stdout for done in await asyncio.gather(*calls)] == [f"{n}\n".encode() for n in range(6)]

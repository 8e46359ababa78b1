"""Checks of ``exec``: argv, streams, environment, folder, input, output, deadlines, signals."""

from __future__ import annotations

import asyncio
import os
import re

from agent_env_core.errors import Gone, Unavailable
from agent_env_core.sandbox.contract import ExecResult
from agent_env_core.testing.checks.base import (
    ENOUGH,
    Failed,
    Subject,
    Trial,
    eventually,
    exists,
    raises,
    runs,
    same,
    true,
)

SUBJECT = Subject("commands")

EVERY_BYTE = bytes(range(256))
ARGUMENTS = 64 * 1024
KEPT, MUCH = 16 * 2**20, 80 * 2**20
DROPPED = re.compile(rb"\n\[agent-env: (\d+) more bytes were dropped\]\n\Z")


@SUBJECT.check()
async def exec_gives_the_code_and_both_streams(trial: Trial) -> None:
    box = await trial.make()
    done = await box.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=ENOUGH)
    true(isinstance(done, ExecResult), f"exec must return an ExecResult, and returns {type(done).__name__}")
    same((done.exit_code, done.stdout, done.stderr, done.timed_out), (3, b"out\n", b"err\n", False))


@SUBJECT.check()
async def exec_takes_arguments_as_they_are(trial: Trial) -> None:
    box = await trial.make()
    arguments = ["a b", "$HOME", "*", "'", '"', "", "ü", "\\n", "-n", "; echo no", "new\nline"]
    done = await box.exec(["printf", "%s|", *arguments], timeout=ENOUGH)
    same(done.stdout.decode(), "|".join(arguments) + "|")


@SUBJECT.check()
async def exec_takes_64_kib_of_arguments(trial: Trial) -> None:
    box = await trial.make()
    command = ["python3", "-c", "import sys; print(len(sys.argv[1]), len(sys.argv) - 2)"]
    many = ["x"] * 1000
    rest = ARGUMENTS - sum(len(part) + 1 for part in (*command, *many)) - 1
    done = await box.exec([*command, "y" * rest, *many], timeout=ENOUGH)
    same((done.exit_code, done.stdout), (0, f"{rest} 1000\n".encode()), "64 KiB of arguments")


@SUBJECT.check()
async def exec_sees_the_env_of_the_spec_and_of_the_call(trial: Trial) -> None:
    box = await trial.make(env={"ONE": "spec", "TWO": "spec"})
    show = ["sh", "-c", 'echo "$ONE $TWO $THREE"']
    same((await box.exec(show, env={"TWO": "call", "THREE": "a b"}, timeout=ENOUGH)).stdout, b"spec call a b\n")
    same((await box.exec(show, timeout=ENOUGH)).stdout, b"spec spec \n", "the env of one call must not stay")


@SUBJECT.check()
async def exec_takes_odd_values_of_variables(trial: Trial) -> None:
    box = await trial.make()
    value = "a=b 'c' \"d\" $e `f` \\ ü\nsecond line"
    done = await box.exec(["printenv", "ODD"], env={"ODD": value, "EMPTY": ""}, timeout=ENOUGH)
    same(done.stdout.decode(), value + "\n")


@SUBJECT.check()
async def exec_sees_no_variable_of_this_process(trial: Trial) -> None:
    name, value = "AGENT_ENV_KIT_SECRET", "s3cret-value"
    os.environ[name] = value
    try:
        box = await trial.make()
        seen = (await box.exec(["env"], timeout=ENOUGH)).stdout.decode()
    finally:
        del os.environ[name]
    true(value not in seen, "a variable of this process was seen by a command")
    names = {line.partition("=")[0] for line in seen.splitlines()}
    suspects = {name for name in os.environ if any(word in name for word in ("TOKEN", "SECRET", "PASSWORD", "KEY"))}
    same(names & suspects, set(), "variables of this process that a command sees")


@SUBJECT.check()
async def exec_runs_in_the_specs_folder(trial: Trial) -> None:
    box = await trial.make(workdir="/tmp")
    await box.write("/tmp/kit-here", b"yes")
    same((await box.exec(["cat", "kit-here"], timeout=ENOUGH)).stdout, b"yes")


@SUBJECT.check()
async def exec_runs_in_the_calls_folder(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/inner/here", b"yes")
    same((await box.exec(["cat", "here"], cwd="/kit/inner", timeout=ENOUGH)).stdout, b"yes")


@SUBJECT.check()
async def exec_of_a_missing_program_is_a_result(trial: Trial) -> None:
    box = await trial.make()
    code = (await box.exec(["no-such-program-anywhere"], timeout=ENOUGH)).exit_code
    true(code in (126, 127), f"a missing program must give 126 or 127, and gives {code}")


@SUBJECT.check()
async def exec_feeds_input_of_any_size(trial: Trial) -> None:
    box = await trial.make()
    done = await box.exec(["wc", "-c"], stdin=b"\0x" * 1_000_000, timeout=ENOUGH)
    same(done.stdout.strip(), b"2000000")


@SUBJECT.check()
async def exec_without_input_is_at_its_end_at_once(trial: Trial) -> None:
    box = await trial.make()
    done = await box.exec(["cat"], timeout=ENOUGH)
    same((done.exit_code, done.stdout, done.timed_out), (0, b"", False))


@SUBJECT.check()
async def exec_may_leave_its_input_unread(trial: Trial) -> None:
    box = await trial.make()
    same((await box.exec(["true"], stdin=b"x" * 1_000_000, timeout=ENOUGH)).exit_code, 0)


@SUBJECT.check()
async def exec_gives_big_output_of_both_streams(trial: Trial) -> None:
    box = await trial.make()
    script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 200000 /dev/zero | tr '\\0' y >&2"
    done = await box.exec(["sh", "-c", script], timeout=ENOUGH)
    same((len(done.stdout), len(done.stderr)), (3_000_000, 200_000), "bytes of stdout and stderr")
    same((set(done.stdout), set(done.stderr)), ({ord("x")}, {ord("y")}), "what the streams are made of")


@SUBJECT.check()
async def output_past_what_is_kept_stops_no_command(trial: Trial) -> None:
    box = await trial.make()
    script = f"head -c {MUCH} /dev/zero | tr '\\0' x; echo end >&2; exit 7"
    done = await box.exec(["sh", "-c", script], timeout=ENOUGH)
    same((done.exit_code, done.stderr), (7, b"end\n"), "the command must come to its own end")
    true(len(done.stdout) >= KEPT, f"at least 16 MiB of a stream must be kept, and {len(done.stdout):,} bytes were")
    true(set(done.stdout[:KEPT]) == {ord("x")}, "what is kept of a stream must be its beginning")
    note = DROPPED.search(done.stdout)
    whole = len(done.stdout) if note is None else note.start() + int(note[1])
    same(whole, MUCH, "bytes of stdout, those counted in that a line at its end says were dropped")


@SUBJECT.check()
async def exec_gives_bytes_that_are_no_text(trial: Trial) -> None:
    box = await trial.make()
    script = "import os; data = bytes(range(256)); os.write(1, data); os.write(2, data[::-1])"
    done = await box.exec(["python3", "-c", script], timeout=ENOUGH)
    same((done.stdout, done.stderr), (EVERY_BYTE, EVERY_BYTE[::-1]))


@SUBJECT.check()
async def exec_feeds_bytes_that_are_no_text(trial: Trial) -> None:
    box = await trial.make()
    same((await box.exec(["cat"], stdin=EVERY_BYTE * 64, timeout=ENOUGH)).stdout, EVERY_BYTE * 64)


@SUBJECT.check()
async def exec_ends_with_its_command_whoever_holds_the_output(trial: Trial) -> None:
    box = await trial.make()
    done = await box.exec(["sh", "-c", "sleep 600 & echo done"], timeout=ENOUGH)
    same((done.exit_code, done.stdout, done.timed_out), (0, b"done\n", False))


@SUBJECT.check()
async def a_deadline_keeps_the_output_and_ends_the_whole_tree(trial: Trial) -> None:
    box = await trial.make()
    script = "echo part; echo err >&2; sleep 600 & echo $!; sh -c 'sleep 600; true' & echo $!; wait"
    done = await box.exec(["sh", "-c", script], timeout=1)
    same((done.timed_out, done.exit_code), (True, None), "timed_out and exit_code")
    first, *children = done.stdout.split() or [b""]
    same((first, len(children), done.stderr), (b"part", 2, b"err\n"), "the output up to the deadline must be kept")
    for pid in children:
        true(not await runs(box, int(pid)), "a child of a command outlived the command's deadline")
    code = (await box.exec(["true"], timeout=ENOUGH)).exit_code
    same(code, 0, "the sandbox must outlive a command's deadline")


@SUBJECT.check()
async def a_cancelled_exec_ends_its_command(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/x", b"")
    script = "echo $$ > part; mv part pid; exec sleep 600"
    call = asyncio.create_task(box.exec(["sh", "-c", script], cwd="/kit"))
    await eventually(lambda: exists(box, "/kit/pid"), 20, "a command must start")
    pid = int(await box.read("/kit/pid"))
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        pass
    else:
        raise Failed("a cancelled exec must raise CancelledError")

    async def ended() -> bool:
        return not await runs(box, pid)

    await eventually(ended, 20, "the command of a cancelled exec must end")


@SUBJECT.check()
async def a_command_killed_by_a_signal_gives_128_and_the_signal(trial: Trial) -> None:
    box = await trial.make()
    for signal, code in (("KILL", 137), ("TERM", 143)):
        done = await box.exec(["sh", "-c", f"echo before; kill -{signal} $$"], timeout=ENOUGH)
        same((done.exit_code, done.stdout), (code, b"before\n"), f"a command killed by SIG{signal}")


@SUBJECT.check()
async def execs_run_at_the_same_time(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/x", b"")
    meet = 'touch "at-$0"; until [ "$(ls | grep -c at-)" -ge 6 ]; do sleep 0.05; done; echo "$0"'
    calls = (box.exec(["sh", "-c", meet, str(number)], cwd="/kit", timeout=ENOUGH) for number in range(6))
    same([done.stdout for done in await asyncio.gather(*calls)], [f"{n}\n".encode() for n in range(6)])


@SUBJECT.check()
async def execs_at_the_same_time_are_kept_apart(trial: Trial) -> None:
    box = await trial.make()
    echo = 'cat; echo "$0" >&2; exit "$0"'
    late = asyncio.create_task(box.exec(["sleep", "600"], timeout=1))
    calls = (box.exec(["sh", "-c", echo, str(n)], stdin=b"%d" % n * 50_000, timeout=ENOUGH) for n in range(12))
    for n, done in enumerate(await asyncio.gather(*calls)):
        same((done.exit_code, done.stderr), (n, f"{n}\n".encode()), f"command {n} of 12")
        same(done.stdout, b"%d" % n * 50_000, f"the output of command {n} of 12")
    true((await late).timed_out, "the deadline of one command among others must be kept")


@SUBJECT.check()
async def a_command_is_never_run_twice(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/x", b"")
    async with trial.fault("lost"):
        with raises(Unavailable, Gone):
            await box.exec(["sh", "-c", "echo ran >> ran"], cwd="/kit", timeout=ENOUGH)
    if await exists(box, "/kit/ran"):
        same(await box.read("/kit/ran"), b"ran\n", "a command whose answer is lost must not be run again")

"""Checks of files and commands together."""

from __future__ import annotations

from agent_env_core.testing.checks.base import ENOUGH, Skipped, Subject, Trial, exists, same, true
from agent_env_core.testing.checks.files import EVERY_BYTE

SUBJECT = Subject("files and commands")


@SUBJECT.check()
async def commands_see_written_files(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/in", EVERY_BYTE * 100)
    same((await box.exec(["cat", "in"], cwd="/kit", timeout=ENOUGH)).stdout, EVERY_BYTE * 100)


@SUBJECT.check()
async def files_of_commands_are_read(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/x", b"")
    await box.exec(["sh", "-c", "printf 'a\\nb' > out"], cwd="/kit", timeout=ENOUGH)
    same(await box.read("/kit/out"), b"a\nb")


@SUBJECT.check()
async def a_written_program_runs_by_its_interpreter(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/hello.py", b"print('hello')\n")
    same((await box.exec(["python3", "hello.py"], cwd="/kit", timeout=ENOUGH)).stdout, b"hello\n")


@SUBJECT.check()
async def a_link_is_followed(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/target", b"one")
    await box.exec(["ln", "-s", "target", "link"], cwd="/kit", timeout=ENOUGH)
    same(await box.read("/kit/link"), b"one", "reading through a link")


@SUBJECT.check()
async def names_that_are_no_text_are_listed_as_they_are(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/inner/x", b"")
    script = "import os; open(b'\\xff\\xfe', 'wb').close(); os.write(1, b'|'.join(sorted(os.listdir(b'.'))))"
    done = await box.exec(["python3", "-c", script], cwd="/kit/inner", timeout=ENOUGH)
    same((done.exit_code, done.stdout), (0, b"x|\xff\xfe"))


@SUBJECT.check(boxes=2)
async def absolute_paths_are_private_where_that_is_claimed(trial: Trial) -> None:
    if not trial.can.private_files:
        raise Skipped("the provider says that sandboxes share absolute paths")
    one, other = await trial.make(), await trial.make()
    name = f"/tmp/{trial.run_id}"
    script = "import sys; open(sys.argv[1], 'x').write('mine')"
    for box in (one, other):  # mode x fails where the file is there already
        done = await box.exec(["python3", "-c", script, name], timeout=ENOUGH)
        same(done.exit_code, 0, f"writing {name}, which another sandbox wrote too: {done.stderr!r}")
        true(await exists(box, name), f"read must find {name}, which a command wrote")


@SUBJECT.check(boxes=2)
async def processes_are_private_where_isolation_is_claimed(trial: Trial) -> None:
    if trial.can.isolation == "none":
        raise Skipped("the provider claims no isolation")
    one, other = await trial.make(), await trial.make()
    await one.exec(["sh", "-c", f"sleep 300 {'0' * 20} & true"], timeout=ENOUGH)
    look = "for each in /proc/[0-9]*; do tr '\\0' ' ' < $each/cmdline; echo; done 2>/dev/null"
    for box, wanted in ((one, True), (other, False)):
        seen = (await box.exec(["sh", "-c", look], timeout=ENOUGH)).stdout
        same(b"sleep 300 " + b"0" * 20 in seen, wanted, "whether a sandbox sees a process of the first one")

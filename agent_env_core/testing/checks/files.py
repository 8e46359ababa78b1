"""Checks of ``read`` and ``write``: bytes, sizes, parents, replacing, names, errors."""

from __future__ import annotations

import asyncio
import hashlib

from agent_env_core.testing.checks.base import Subject, Trial, raises, same, true

SUBJECT = Subject("files")

EVERY_BYTE = bytes(range(256))
LARGE = 32 * 2**20


@SUBJECT.check()
async def a_file_comes_back_as_it_went(trial: Trial) -> None:
    box = await trial.make()
    for data in (EVERY_BYTE * 8000, b"short", b""):  # each replaces a longer one
        await box.write("/kit/deep/er/file.bin", data)
        same(await box.read("/kit/deep/er/file.bin"), data)


@SUBJECT.check()
async def a_file_of_32_mib_comes_back(trial: Trial) -> None:
    box = await trial.make()
    block = hashlib.sha256(b"kit").digest() * 32  # 1 KiB that no compression makes small, with what is unique in each
    data = b"".join(number.to_bytes(8, "big") + block[8:] for number in range(LARGE // 1024))
    await box.write("/kit/large", data)
    back = await box.read("/kit/large")
    same((len(back), hashlib.sha256(back).hexdigest()), (len(data), hashlib.sha256(data).hexdigest()), "size and hash")


@SUBJECT.check()
async def odd_names_are_names(trial: Trial) -> None:
    box = await trial.make()
    names = ("with space", "-dash", "quote'\"", "ünïcode", "$HOME", "semi;colon", "a\\b", "new\nline", "100%", "a?b#c")
    for number, name in enumerate(names):
        await box.write(f"/kit/{name}", b"%d" % number)
    for number, name in enumerate(names):
        same(await box.read(f"/kit/{name}"), b"%d" % number, f"the file named {name!r}")


@SUBJECT.check()
async def files_written_at_the_same_time_are_kept_apart(trial: Trial) -> None:
    box = await trial.make()
    names = [f"/kit/some/folder/{number}" for number in range(12)]
    await asyncio.gather(*(box.write(name, name.encode() * 10_000) for name in names))
    for name, data in zip(names, await asyncio.gather(*map(box.read, names)), strict=True):
        same(data, name.encode() * 10_000, name)


@SUBJECT.check()
async def what_is_read_is_bytes(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/text", b"text")
    data = await box.read("/kit/text")
    true(isinstance(data, bytes), f"read must return bytes, and returns {type(data).__name__}")


@SUBJECT.check()
async def reading_what_is_not_there(trial: Trial) -> None:
    box = await trial.make()
    with raises(FileNotFoundError):
        await box.read("/kit/nothing/here")


@SUBJECT.check()
async def a_folder_is_no_file(trial: Trial) -> None:
    box = await trial.make()
    await box.write("/kit/folder/file", b"1")
    with raises(IsADirectoryError):
        await box.read("/kit/folder")
    with raises(IsADirectoryError):
        await box.write("/kit/folder", b"2")
    same(await box.read("/kit/folder/file"), b"1")


@SUBJECT.check(boxes=2)
async def a_new_sandbox_has_no_file_of_another(trial: Trial) -> None:
    one, other = await trial.make(), await trial.make()
    await one.write("/kit/mark", b"1")
    with raises(FileNotFoundError):
        await other.read("/kit/mark")

"""Checks of ``read`` and ``write``."""

from __future__ import annotations

import pytest

from agent_env_core.testing.checks.base import Boxes, Kit
from agent_env_core.testing.checks.commands import ENOUGH

EVERY_BYTE = bytes(range(256))


class FileChecks(Kit):
    """Files: bytes, parents, replacing, names, errors."""

    async def test_a_file_comes_back_as_it_went(self, boxes: Boxes) -> None:
        box = await boxes.make()
        for data in (EVERY_BYTE * 8000, b"short", b""):  # each replaces a longer one
            await box.write("/kit/deep/er/file.bin", data)
            assert await box.read("/kit/deep/er/file.bin") == data

    async def test_a_file_of_many_megabytes_comes_back(self, boxes: Boxes) -> None:
        box = await boxes.make()
        data = EVERY_BYTE * (8 * 4096)  # 8 MiB, well past what a command line could carry
        await box.write("/kit/big", data)
        assert await box.read("/kit/big") == data

    @pytest.mark.parametrize("name", ["with space", "-dash", "quote'\"", "ünïcode", "$HOME", "semi;colon", "a\\b"])
    async def test_odd_names_are_names(self, boxes: Boxes, name: str) -> None:
        box = await boxes.make()
        await box.write(f"/kit/{name}", b"1")
        assert await box.read(f"/kit/{name}") == b"1"

    async def test_reading_what_is_not_there(self, boxes: Boxes) -> None:
        box = await boxes.make()
        with pytest.raises(FileNotFoundError):
            await box.read("/kit/nothing/here")

    async def test_a_folder_is_no_file(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/folder/file", b"1")
        with pytest.raises(IsADirectoryError):
            await box.read("/kit/folder")
        with pytest.raises(IsADirectoryError):
            await box.write("/kit/folder", b"2")
        assert await box.read("/kit/folder/file") == b"1"

    async def test_a_new_sandbox_has_no_file_of_another(self, boxes: Boxes) -> None:
        one, other = await boxes.make(), await boxes.make()
        await one.write("/kit/mark", b"1")
        with pytest.raises(FileNotFoundError):
            await other.read("/kit/mark")


class FileCommandChecks(Kit):
    """Files and commands together."""

    async def test_commands_see_written_files(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/in", EVERY_BYTE * 100)
        assert (await box.exec(["wc", "-c", "/kit/in"], timeout=ENOUGH)).stdout.split()[0] == b"25600"

    async def test_files_of_commands_are_read(self, boxes: Boxes) -> None:
        box = await boxes.make()
        await box.write("/kit/x", b"")
        await box.exec(["sh", "-c", "printf 'a\\nb' > out"], cwd="/kit", timeout=ENOUGH)
        assert await box.read("/kit/out") == b"a\nb"

    async def test_absolute_paths_are_private_where_that_is_claimed(self, boxes: Boxes) -> None:
        if not boxes.provider.capabilities.private_files:
            pytest.skip("the provider says that sandboxes share absolute paths")
        one, other = await boxes.make(), await boxes.make()
        name = f"/tmp/{boxes.labels['agent-env.run']}"
        script = "import sys; open(sys.argv[1], 'x').write('mine')"
        for box in (one, other):  # mode x fails where the file is there already
            done = await box.exec(["python3", "-c", script, name], timeout=ENOUGH)
            assert done.exit_code == 0, done.stderr

"""Checks of ``prepare``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent_env_core.errors import ImageError, Unsupported
from agent_env_core.sandbox.contract import Image, SandboxProvider
from agent_env_core.testing.checks.base import Boxes, Kit, context
from agent_env_core.testing.checks.commands import ENOUGH


class ImageChecks(Kit):
    """Images: built from a folder, or taken from a registry."""

    def built(self, provider: SandboxProvider, folder: Path, *lines: str, **files: str) -> Image:
        """A build context on top of :attr:`base_image`; skips the check where nothing can be built."""
        if not provider.capabilities.build:
            pytest.skip("the provider builds no images")
        return context(folder, "\n".join((f"FROM {self.base_image}", *lines, "")), **files)

    async def test_preparing_again_gives_the_same(self, provider: SandboxProvider, tmp_path: Path) -> None:
        image = self.built(provider, tmp_path, "COPY hello.txt /kit/hello.txt", hello__txt="hello")
        one, two = await asyncio.gather(provider.prepare(image), provider.prepare(image))
        assert one == two == await provider.prepare(image)

    async def test_other_content_is_another_image(self, provider: SandboxProvider, tmp_path: Path) -> None:
        image = self.built(provider, tmp_path, "COPY hello.txt /kit/hello.txt", hello__txt="one")
        before = await provider.prepare(image)
        (tmp_path / "hello.txt").write_text("two")
        assert await provider.prepare(image) != before

    async def test_an_image_holds_what_its_dockerfile_says(self, boxes: Boxes, tmp_path: Path) -> None:
        lines = ("WORKDIR /kit/work", 'ENV GREETING="good day"', "COPY hello.txt .")
        image = self.built(boxes.provider, tmp_path, *lines, hello__txt="hello")
        box = await boxes.make(image=await boxes.provider.prepare(image))
        assert await box.read("/kit/work/hello.txt") == b"hello"
        done = await box.exec(["sh", "-c", 'echo "$GREETING"; cat hello.txt'], timeout=ENOUGH)
        assert done.stdout == b"good day\nhello"

    async def test_a_sandbox_changes_no_image(self, boxes: Boxes, tmp_path: Path) -> None:
        image = self.built(boxes.provider, tmp_path, "COPY hello.txt /kit/hello.txt", hello__txt="hello")
        prepared = await boxes.provider.prepare(image)
        one = await boxes.make(image=prepared)
        await one.write("/kit/hello.txt", b"changed")
        other = await boxes.make(image=prepared)
        assert await other.read("/kit/hello.txt") == b"hello"

    @pytest.mark.parametrize("line", ['CMD ["false"]', 'ENTRYPOINT ["false"]'])
    async def test_an_images_own_command_is_never_relied_on(self, boxes: Boxes, tmp_path: Path, line: str) -> None:
        image = await boxes.provider.prepare(self.built(boxes.provider, tmp_path, line))
        idle, busy = await boxes.make(image=image), await boxes.make(image=image, command=("sleep", "600"))
        for box in (idle, busy):
            assert (await box.exec(["true"], timeout=ENOUGH)).exit_code == 0

    async def test_a_failed_build_is_an_image_error(self, provider: SandboxProvider, tmp_path: Path) -> None:
        image = self.built(provider, tmp_path, "RUN echo why it failed && exit 7")
        with pytest.raises(ImageError):
            await provider.prepare(image)

    async def test_a_missing_dockerfile_is_an_image_error(self, provider: SandboxProvider, tmp_path: Path) -> None:
        if not provider.capabilities.build:
            pytest.skip("the provider builds no images")
        with pytest.raises(ImageError, match="Dockerfile"):
            await provider.prepare(Image(context=tmp_path))

    async def test_what_is_not_claimed_is_refused(self, provider: SandboxProvider, tmp_path: Path) -> None:
        if not provider.capabilities.refs:
            with pytest.raises(Unsupported, match="registry"):
                await provider.prepare(Image(ref="docker.io/library/python:3.12-slim"))
        if not provider.capabilities.build:
            with pytest.raises(Unsupported, match="Dockerfile"):
                await provider.prepare(context(tmp_path, "FROM scratch\n"))

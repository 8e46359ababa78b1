"""Image builds that callers share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agent_env_core.sandbox.contract import Image, SandboxProvider


@dataclass
class _Build:
    """A build under way, and how many callers wait for it."""

    task: asyncio.Task[str]
    waiting: int = 0


class Builds:
    """One build at a time for each image. Who asks again has it looked for again, since content may change.

    Args:
        provider: Who builds.
    """

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._running: dict[Image, _Build] = {}
        self._known: dict[str, Image] = {}

    async def get(self, image: Image) -> str:
        """Prepares ``image``, or joins those who wait for it. The last one to be cancelled stops the build.

        Raises:
            ImageError: See :meth:`SandboxProvider.prepare`.
        """
        build = self._running.get(image)
        if build is None:
            build = self._running[image] = _Build(asyncio.create_task(self._provider.prepare(image)))
            build.task.add_done_callback(lambda _: self._forget(image, build))
        build.waiting += 1
        try:
            prepared = await asyncio.shield(build.task)
            self._known[prepared] = image
            return prepared
        finally:
            build.waiting -= 1
            if not build.waiting and not build.task.done():
                self._forget(image, build)
                build.task.cancel()

    async def again(self, prepared: str) -> bool:
        """Prepares what :meth:`get` gave once more, should somebody have removed it; says whether it is there.

        False where it isn't known, or has other content by now.

        Raises:
            ImageError: See :meth:`SandboxProvider.prepare`.
        """
        image = self._known.get(prepared)
        return image is not None and await self.get(image) == prepared

    async def aclose(self) -> None:
        """Stops all builds and waits until they have tidied up."""
        tasks = [build.task for build in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, image: Image, build: _Build) -> None:
        if self._running.get(image) is build:
            del self._running[image]

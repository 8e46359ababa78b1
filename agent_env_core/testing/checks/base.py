"""What all checks of a sandbox provider share: the fixtures a provider's author overrides, and small helpers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agent_env_core.sandbox.contract import Image, Sandbox, SandboxInfo, SandboxProvider, SandboxSpec
from agent_env_core.sandbox.leases import RUN_LABEL, Owner, lease_labels

PORT = 18080
"""The port that checks ask for."""


class Boxes:
    """Makes sandboxes for one check and ends them after it.

    Args:
        provider: Whose sandboxes.
        image: What they start from.
    """

    def __init__(self, provider: SandboxProvider, image: str) -> None:
        self.provider, self.image = provider, image
        self.labels = lease_labels(Owner.current(), f"kit-{uuid.uuid4().hex[:12]}", 600)
        self.run = {RUN_LABEL: self.labels[RUN_LABEL]}
        self._made: list[str] = []

    def spec(self, *, labels: Mapping[str, str] | None = None, **settings: Any) -> SandboxSpec:
        """A spec with the check's labels and a finite TTL; anything may be set."""
        return SandboxSpec(**{"image": self.image, "ttl": 300, "labels": {**self.labels, **(labels or {})}, **settings})

    async def make(self, **settings: Any) -> Sandbox:
        """Creates a sandbox; see :meth:`spec`."""
        box = await self.provider.create(self.spec(**settings))
        self._made.append(box.id)
        return box

    async def listed(self, labels: Mapping[str, str] | None = None) -> dict[str, SandboxInfo]:
        """What the provider lists for these labels, by default for the check's own."""
        return {info.id: info async for info in self.provider.list(self.run if labels is None else labels)}

    async def end(self) -> list[str]:
        """Ends all that was made, and says what nobody accounted for."""
        await asyncio.gather(*(self.provider.kill(box) for box in self._made))
        strays = sorted(await self.listed())
        await asyncio.gather(*(self.provider.kill(box) for box in strays))
        return strays


class Kit:
    """Fixtures of every check. A provider's author overrides :meth:`provider`, and :meth:`image` where need be."""

    base_image: ClassVar[str] = "python:3.11-slim"
    """What the kit's own Dockerfiles start from: any image with ``sh``, the usual tools, and ``python3``."""

    _refs: ClassVar[dict[type, str]] = {}

    @pytest.fixture
    async def provider(self) -> AsyncIterator[SandboxProvider]:
        """The provider under test, new for every check; close it after the ``yield``."""
        raise NotImplementedError("override the fixture `provider`: yield your provider, then close it")
        yield  # noqa: PT022 - what overrides it has something to close

    @pytest.fixture
    async def image(self, provider: SandboxProvider, tmp_path_factory: pytest.TempPathFactory) -> str:
        """A prepared image; by default :attr:`base_image`, built or pulled, whichever the provider can do."""
        if type(self) not in self._refs:
            image = Image(ref=self.base_image)
            if provider.capabilities.build:
                folder = tmp_path_factory.mktemp("context")
                image = context(folder, f"FROM {self.base_image}\n")
            self._refs[type(self)] = await provider.prepare(image)
        return self._refs[type(self)]

    @pytest.fixture
    async def boxes(self, provider: SandboxProvider, image: str) -> AsyncIterator[Boxes]:
        """Makes sandboxes; fails the check that leaves one which nobody made."""
        made = Boxes(provider, image)
        yield made
        assert await made.end() == [], "sandboxes were left behind that no call had returned"


def context(folder: Path, dockerfile: str, **files: str) -> Image:
    """A build context; a double underscore in a file's name stands for the dot."""
    (folder / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return Image(context=folder)


async def eventually(look: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """Asks until the answer is true, with growing pauses; fails after ``seconds``."""
    ends, pause = time.monotonic() + seconds, 0.005
    while not (answer := await look()):
        assert time.monotonic() < ends, f"not within {seconds:g} s: {look}"
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.25)
    return answer


async def runs(box: Sandbox, pid: int) -> bool:
    """Whether a process of the sandbox runs; one that has ended and was not collected yet doesn't."""
    asked = await box.exec(["cat", f"/proc/{pid}/stat"], timeout=30)
    return asked.exit_code == 0 and asked.stdout.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


async def exists(box: Sandbox, path: str) -> bool:
    """Whether the sandbox has such a file."""
    try:
        await box.read(path)
    except FileNotFoundError:
        return False
    return True

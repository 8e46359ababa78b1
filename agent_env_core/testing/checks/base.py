"""What all checks of a sandbox provider share: how one is declared, what it is handed, and how it says what it saw.

Nothing here needs a test framework: pytest runs the checks for a provider's author
(:mod:`agent_env_core.testing.sandbox`), ``agent-env sandbox check`` for a user with an account.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env_core.errors import describe
from agent_env_core.sandbox.contract import Image, Sandbox, SandboxInfo, SandboxProvider, SandboxSpec
from agent_env_core.sandbox.leases import RUN_LABEL, Owner, lease_labels

PORT = 18080
"""The port that checks ask for."""

TTL = 600.0
"""Seconds to live of a check's sandbox; longer than a check may take."""

LONGEST_TTL = 900.0
"""The most that any check asks for."""

LIMIT = 300.0
"""Seconds one check may take."""

ENOUGH = 60.0
"""Seconds that a command may take which ends at once: a hang must fail, a slow machine must not."""

AFTER = 20.0
"""Seconds after everything was ended until nothing may be seen of it from outside."""

SHOWN = 300
"""Characters of a value that a failure shows."""

Outside = Callable[[Mapping[str, str]], Awaitable[Collection[str]]]
"""Names whatever exists of the sandboxes with these labels, without asking the provider: containers, processes,
folders. The provider's own ``list`` can't show what it never registered."""

Fault = Callable[[], AbstractAsyncContextManager[SandboxProvider]]
"""Makes the service go wrong for as long as the context is open, which gives the provider to ask meanwhile."""


class Failed(AssertionError):
    """A promise of the contract is broken; the text says which, what was expected, and what was seen."""


class Skipped(Exception):
    """A check doesn't apply to this provider, for the reason given."""


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: What it checks, in words with underscores.
        subject: What it is about; see :data:`agent_env_core.testing.checks.SUBJECTS`.
        run: Does it.
        boxes: How many sandboxes it makes at most.
        builds: How many images it prepares at most.
    """

    name: str
    subject: str
    run: Callable[[Trial], Awaitable[None]]
    boxes: int = 1
    builds: int = 0

    @property
    def title(self) -> str:
        """Its name as a person reads it."""
        return self.name.replace("_", " ")


class Subject:
    """Collects the checks of one subject; used as a decorator."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def check(self, *, boxes: int = 1, builds: int = 0) -> Callable[[_Run], _Run]:
        """Declares a check that makes at most ``boxes`` sandboxes and prepares at most ``builds`` images."""

        def declare(run: _Run) -> _Run:
            self.checks.append(Check(run.__name__, self.name, run, boxes, builds))
            return run

        return declare


@dataclass(frozen=True)
class Target:
    """What is being checked.

    Attributes:
        provider: The provider.
        image: What its ``prepare`` gave for an image with ``sh``, the usual tools, and ``python3``.
        base_image: The name of such an image, for the kit's own Dockerfiles.
        outside: See :data:`Outside`; None where nobody counts.
        faults: See :data:`Fault`; by the names of :data:`agent_env_core.testing.checks.errors.FAULTS`.
        gpu: A GPU type to ask for, where the provider claims to have some.
    """

    provider: SandboxProvider
    image: str
    base_image: str
    outside: Outside | None = None
    faults: Mapping[str, Fault] = field(default_factory=dict)
    gpu: str | None = None


class Trial:
    """What one check is handed: it makes sandboxes, and :meth:`end` sees that none is left.

    Args:
        tested: What is checked.
        folder: An empty folder of the check's own.
        boxes: How many sandboxes the check may make.
    """

    def __init__(self, tested: Target, folder: Path, boxes: int) -> None:
        self.tested, self.folder = tested, folder
        self.provider = tested.provider
        self.can = tested.provider.capabilities
        self.run_id = f"kit-{uuid.uuid4().hex[:12]}"
        self.labels = lease_labels(Owner.current(), self.run_id, TTL)
        self.mine = {RUN_LABEL: self.run_id}
        self._left = boxes
        self._made: list[str] = []

    # -- sandboxes

    def spec(self, *, labels: Mapping[str, str] | None = None, **settings: Any) -> SandboxSpec:
        """A spec with the check's labels and a finite TTL; anything may be set."""
        labels = {**self.labels, **(labels or {})}
        return SandboxSpec(**{"image": self.tested.image, "ttl": TTL, "labels": labels, **settings})

    def spend(self, boxes: int = 1) -> None:
        """Notes that so many sandboxes may be made, since a user was told how many at most."""
        self._left -= boxes
        if self._left < 0:
            raise RuntimeError("the check makes more sandboxes than it declares")

    async def make(self, **settings: Any) -> Sandbox:
        """Creates a sandbox; see :meth:`spec`."""
        self.spend()
        box = await self.provider.create(self.spec(**settings))
        self._made.append(box.id)
        return box

    async def refuses(self, *kinds: type[Exception], says: str = "", **settings: Any) -> None:
        """Fails unless creating raises one of ``kinds`` with ``says`` in its text, and leaves nothing."""
        with raises(*kinds, says=says):
            await self.make(**settings)
        same(set(await self.listed()), set(), "a refused create must leave nothing")

    async def listed(self, labels: Mapping[str, str] | None = None) -> dict[str, SandboxInfo]:
        """What the provider lists for these labels, by default for the check's own."""
        return {info.id: info async for info in self.provider.list(self.mine if labels is None else labels)}

    async def outside(self) -> Collection[str]:
        """What exists of the check's sandboxes according to :data:`Outside`; empty where nobody counts."""
        return () if self.tested.outside is None else await self.tested.outside(self.mine)

    # -- images and faults

    def context(self, dockerfile: str, **files: str) -> Image:
        """A build context in the check's folder; a double underscore in a file's name stands for the dot."""
        (self.folder / "Dockerfile").write_text(dockerfile, encoding="utf-8")
        for name, text in files.items():
            (self.folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
        return Image(context=self.folder)

    def built(self, *lines: str, **files: str) -> Image:
        """A build context on top of the base image; skips the check where nothing can be built."""
        if not self.can.build:
            raise Skipped("the provider builds no images")
        return self.context("\n".join((f"FROM {self.tested.base_image}", *lines, "")), **files)

    def fault(self, name: str) -> AbstractAsyncContextManager[SandboxProvider]:
        """Brings a fault about; skips the check where the provider's tests can't."""
        if name not in self.tested.faults:
            raise Skipped(f"nobody can bring about the fault {name!r} here")
        return self.tested.faults[name]()

    # -- the end

    async def end(self) -> list[str]:
        """Ends all that was made, and says in words what nobody accounted for; empty when all is well."""
        problems = await self._kill(self._made)
        try:
            strays = sorted(await self.listed())
        except Exception as exc:
            return [*problems, f"what is left can't be listed: {describe(exc)}"]
        problems += [f"the sandbox {stray} was left behind, and no call had returned it" for stray in strays]
        problems += await self._kill(strays)
        ends = time.monotonic() + AFTER
        while (seen := await self.outside()) and time.monotonic() < ends:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)
        return [*problems, *(f"{name} exists still, though all was ended" for name in seen)]

    async def _kill(self, boxes: Collection[str]) -> list[str]:
        answers = await asyncio.gather(*(self.provider.kill(box) for box in boxes), return_exceptions=True)
        pairs = zip(boxes, answers, strict=True)
        return [f"can't end {box}: {describe(exc)}" for box, exc in pairs if isinstance(exc, BaseException)]


_Run = Callable[[Trial], Awaitable[None]]


async def perform(check: Check, trial: Trial, limit: float = LIMIT) -> None:
    """Runs one check to its end, clearing away included.

    Args:
        check: The check.
        trial: A new one, made for it.
        limit: Seconds it may take.

    Raises:
        Failed: The provider breaks a promise.
        Skipped: The check doesn't apply.
    """
    failure: Exception | None = None
    try:
        async with asyncio.timeout(limit):
            await check.run(trial)
    except TimeoutError as exc:
        failure = Failed(f"it wasn't over after {limit:g} s")
        failure.__cause__ = exc
    except Exception as exc:
        failure = exc
    finally:
        left = await trial.end()
    if left and (failure is None or isinstance(failure, Skipped)):
        failure = Failed("; ".join(left))
    if failure is not None:
        raise failure


# -- how a check says what it saw


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text):,} characters)"


def same(got: object, wanted: object, what: str = "") -> None:
    """Fails unless both are equal."""
    if got != wanted:
        raise Failed(f"{what + ': ' if what else ''}expected {_short(wanted)}, got {_short(got)}")


def true(holds: object, what: str) -> None:
    """Fails unless ``holds``; ``what`` says what must hold, and what was seen instead."""
    if not holds:
        raise Failed(what)


@dataclass
class Caught:
    """What :func:`raises` caught."""

    error: Exception = field(default_factory=Exception)


@contextmanager
def raises(*kinds: type[Exception], says: str = "") -> Iterator[Caught]:
    """Fails unless the block raises one of ``kinds``, with ``says`` somewhere in its text."""
    names = " or ".join(kind.__name__ for kind in kinds)
    caught = Caught()
    try:
        yield caught
    except kinds as exc:
        caught.error = exc
        true(str(exc).strip(), f"the {type(exc).__name__} has no text")
        true(says in str(exc), f"the {type(exc).__name__} must name {says!r}, and says: {describe(exc)}")
    except (Failed, Skipped):
        raise
    except Exception as exc:
        raise Failed(f"expected {names}, and {type(exc).__name__} was raised: {describe(exc)}") from exc
    else:
        raise Failed(f"expected {names}, and nothing was raised")


async def eventually(look: Callable[[], Awaitable[Any]], seconds: float, what: str) -> Any:
    """Asks until the answer is true, with growing pauses; fails after ``seconds``."""
    ends, pause = time.monotonic() + seconds, 0.005
    while not (answer := await look()):
        true(time.monotonic() < ends, f"not within {seconds:g} s: {what}")
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.25)
    return answer


async def runs(box: Sandbox, pid: int) -> bool:
    """Whether a process of the sandbox runs; one that has ended and was not collected yet doesn't."""
    asked = await box.exec(["cat", f"/proc/{pid}/stat"], timeout=ENOUGH)
    return asked.exit_code == 0 and asked.stdout.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


async def exists(box: Sandbox, path: str) -> bool:
    """Whether the sandbox has such a file."""
    try:
        await box.read(path)
    except FileNotFoundError:
        return False
    return True

"""Providers of real sandboxes that are broken in one way each, and the check that has to notice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agent_env_process.provider import ProcessProvider

from agent_env_core.errors import SandboxError
from agent_env_core.sandbox.contract import Capabilities, Endpoint, ExecResult, Image, Sandbox, SandboxSpec
from agent_env_core.testing.checks import base, life
from agent_env_core.testing.checks.base import Target
from agent_env_core.testing.running import prepare_base

Noticed = Callable[[Target, str, Path], Awaitable[str]]


class Box:
    """A real sandbox; mutants override a method."""

    def __init__(self, inner: Sandbox, provider: Real) -> None:
        self.inner, self.provider = inner, provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def exec(self, argv: Sequence[str], **how: Any) -> ExecResult:
        return await self.inner.exec(argv, **how)


class Real(ProcessProvider):
    """The process provider, with sandboxes of the class :attr:`box`, and claims that may be false."""

    box: type[Box] = Box
    claims: ClassVar[Mapping[str, Any]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, **self.claims)

    async def create(self, spec: SandboxSpec) -> Any:
        return self.box(await super().create(spec), self)

    async def attach(self, id: str) -> Any:
        return self.box(await super().attach(id), self)


def boxed(name: str, **methods: Any) -> type[Real]:
    """A provider whose sandboxes have these methods instead."""
    return type(name, (Real,), {"box": type(name, (Box,), methods)})


def changed(result_of: Any) -> Any:
    """An ``exec`` whose result is changed."""

    async def exec(self: Box, argv: Sequence[str], **how: Any) -> Any:
        return result_of(await self.inner.exec(argv, **how))

    return exec


async def _shell(self: Box, argv: Sequence[str], **how: Any) -> ExecResult:
    return await self.inner.exec(["sh", "-c", " ".join(argv)], **how)


async def _outlives_deadline(self: Box, argv: Sequence[str], timeout: float | None = None, **how: Any) -> ExecResult:
    work = asyncio.create_task(self.inner.exec(argv, **how))
    done, _ = await asyncio.wait({work}, timeout=timeout)
    work.add_done_callback(lambda task: task.cancelled() or task.exception())
    return work.result() if done else ExecResult(None, b"", b"", timed_out=True)


async def _outlives_cancel(self: Box, argv: Sequence[str], **how: Any) -> ExecResult:
    work = asyncio.create_task(self.inner.exec(argv, **how))
    work.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(work)


async def _leaks_environment(self: Box, argv: Sequence[str], env: Any = None, **how: Any) -> ExecResult:
    return await self.inner.exec(argv, env={**os.environ, **(env or {})}, **how)


async def _raises_on_failure(self: Box, argv: Sequence[str], **how: Any) -> ExecResult:
    done = await self.inner.exec(argv, **how)
    if done.exit_code:
        raise SandboxError(f"exit code {done.exit_code}")
    return done


async def _drops_input(self: Box, argv: Sequence[str], stdin: bytes | None = None, **how: Any) -> ExecResult:
    return await self.inner.exec(argv, **how)


async def _one_at_a_time(self: Box, argv: Sequence[str], **how: Any) -> ExecResult:
    self.provider.__dict__.setdefault("lock", asyncio.Lock())
    async with self.provider.__dict__["lock"]:
        return await self.inner.exec(argv, **{**how, "timeout": 1})


async def _small_files(self: Box, path: str, data: bytes) -> None:
    await self.inner.write(path, data[: 2**22])


async def _empty_for_missing(self: Box, path: str) -> bytes:
    try:
        return await self.inner.read(path)
    except FileNotFoundError:
        return b""


async def _text_of_file(self: Box, path: str) -> Any:
    return (await self.inner.read(path)).decode()


async def _any_port(self: Box, port: int) -> Endpoint:
    return await self.inner.endpoint(life.PORT)


async def _slash(self: Box, port: int) -> Endpoint:
    return Endpoint((await self.inner.endpoint(port)).url + "/")


async def _first_ones(self: Box, port: int) -> Endpoint:
    return self.provider.__dict__.setdefault("first", await self.inner.endpoint(port))


class LiesAboutLimits(Real):
    claims: ClassVar = {"limits": frozenset({"cpu", "memory_mb"})}

    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, cpu=None, memory_mb=None))


class IgnoresLimits(LiesAboutLimits):
    claims: ClassVar[Mapping[str, Any]] = {}


class LiesAboutNetwork(Real):
    claims: ClassVar = {"network": frozenset({"open", "none"})}

    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, network="open"))


class OneForAll(Real):
    """Gives every caller the same sandbox, which it says are several."""

    claims: ClassVar = {"private_files": True, "isolation": "container"}

    async def create(self, spec: SandboxSpec) -> Any:
        if "only" not in self.__dict__:
            self.__dict__["only"] = await super().create(spec)
        return self.__dict__["only"]


class NeverTheSameImage(Real):
    async def prepare(self, image: Image) -> str:
        self.__dict__["count"] = self.__dict__.get("count", 0) + 1
        return f"{await super().prepare(image)}-{self.__dict__['count']}"


class SeesNoChange(Real):
    async def prepare(self, image: Image) -> str:
        return self.__dict__.setdefault("ref", await super().prepare(image))


REAL: list[tuple[type[Real], str]] = [
    (boxed("Text", exec=changed(lambda d: replace(d, stdout=str(d.stdout)))), "exec_gives_the_code_and_both_streams"),
    (boxed("NoStderr", exec=changed(lambda d: replace(d, stderr=b""))), "exec_gives_the_code_and_both_streams"),
    (boxed("Tuple", exec=changed(lambda d: (d.exit_code, d.stdout))), "exec_gives_the_code_and_both_streams"),
    (boxed("Raises", exec=_raises_on_failure), "exec_gives_the_code_and_both_streams"),
    (boxed("RaisesToo", exec=_raises_on_failure), "exec_of_a_missing_program_is_a_result"),
    (boxed("Shell", exec=_shell), "exec_takes_arguments_as_they_are"),
    (
        boxed("Decodes", exec=changed(lambda d: replace(d, stdout=d.stdout.decode(errors="replace").encode()))),
        "exec_gives_bytes_that_are_no_text",
    ),
    (boxed("Short", exec=changed(lambda d: replace(d, stdout=d.stdout[: 2**20]))),
     "exec_gives_big_output_of_both_streams"),
    (boxed("KeepsLittle", exec=changed(lambda d: replace(d, stdout=d.stdout[: 2**23]))),
     "output_past_what_is_kept_stops_no_command"),
    (boxed("CutsUnsaid", exec=changed(lambda d: replace(d, stdout=d.stdout[: 20 * 2**20]))),
     "output_past_what_is_kept_stops_no_command"),
    (boxed("NoSignal", exec=changed(lambda d: replace(d, exit_code=min(d.exit_code or 0, 1)))),
     "a_command_killed_by_a_signal_gives_128_and_the_signal"),
    (boxed("DropsInput", exec=_drops_input), "exec_feeds_input_of_any_size"),
    (boxed("Environment", exec=_leaks_environment), "exec_sees_no_variable_of_this_process"),
    (boxed("OneAtATime", exec=_one_at_a_time), "execs_run_at_the_same_time"),
    (boxed("Deadline", exec=_outlives_deadline), "a_deadline_keeps_the_output_and_ends_the_whole_tree"),
    (boxed("Cancel", exec=_outlives_cancel), "a_cancelled_exec_ends_its_command"),
    (boxed("SmallFiles", write=_small_files), "a_file_of_32_mib_comes_back"),
    (boxed("EmptyForMissing", read=_empty_for_missing), "reading_what_is_not_there"),
    (boxed("TextOfFile", read=_text_of_file), "what_is_read_is_bytes"),
    (boxed("AnyPort", endpoint=_any_port), "a_port_that_was_not_named_has_no_endpoint"),
    (boxed("Slash", endpoint=_slash), "an_endpoint_has_no_slash_behind_it"),
    (boxed("FirstOnes", endpoint=_first_ones), "sandboxes_with_one_port_dont_meet"),
    (LiesAboutLimits, "memory_is_kept_or_refused"),
    (IgnoresLimits, "memory_is_kept_or_refused"),
    (IgnoresLimits, "cores_are_kept_or_refused"),
    (LiesAboutNetwork, "no_network_means_none_where_that_is_claimed"),
    (OneForAll, "absolute_paths_are_private_where_that_is_claimed"),
    (OneForAll, "processes_are_private_where_isolation_is_claimed"),
    (NeverTheSameImage, "preparing_again_gives_the_same"),
    (SeesNoChange, "other_content_is_another_image"),
]  # fmt: skip


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.usefixtures("no_processes_left")
@pytest.mark.parametrize("pair", REAL, ids=lambda pair: f"{pair[0].__name__}-{pair[1]}")
async def test_a_broken_provider_of_real_sandboxes_is_noticed(
    pair: tuple[type[Real], str], cache_dir: Path, tmp_path: Path, noticed: Noticed
) -> None:
    kind, check = pair
    said = {}
    for each in (Real, kind):
        config = {"cache_dir": str(cache_dir), "state_dir": str(tmp_path / f"state-{each.__name__}")}
        provider = each(config)
        (folder := tmp_path / each.__name__).mkdir()
        (ground := tmp_path / f"base-{each.__name__}").mkdir()
        image = await prepare_base(Real(config), "python:3.11-slim", ground)
        try:
            said[each] = await noticed(Target(provider, image, "python:3.11-slim"), check, folder)
        except base.Skipped as skipped:
            said[each] = "" if each is Real else f"skipped: {skipped}"
        finally:
            sweeper = ProcessProvider(config)
            for info in [info async for info in sweeper.list({})]:
                await provider.kill(info.id)
            await provider.aclose()
    assert said[Real] == "", "the whole one must pass"
    assert said[kind]
    assert not said[kind].startswith("skipped")

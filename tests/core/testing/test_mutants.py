"""The kit is tested too: providers that are broken in one way each, and the check that has to notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.errors import Busy, ConfigError, Gone, ImageError, Unavailable
from agent_env_core.sandbox.contract import Capabilities, Image, SandboxInfo, SandboxSpec
from agent_env_core.testing.checks.base import Target
from agent_env_core.testing.fake import CAPABILITIES, METHODS, FakeProvider

Noticed = Callable[[Target, str, Path], Awaitable[str]]


class Fake(FakeProvider):
    """The fake provider, whose sandboxes may be hidden from ``list``, and faults of a service."""

    def __init__(self) -> None:
        super().__init__(capabilities=self.claims, start_time=0.02)
        self.hidden: set[str] = set()

    claims: Capabilities = replace(CAPABILITIES, network=frozenset({"open", "allow"}))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list(labels):
            if info.id not in self.hidden:
                yield info

    async def exist(self, labels: Mapping[str, str]) -> list[str]:
        return [box.id for box in self.sandboxes.values() if labels.items() <= box.labels.items()]

    def faults(self) -> dict[str, Any]:
        @asynccontextmanager
        async def failing(
            error: Exception, methods: Sequence[str] = METHODS, after: bool = False
        ) -> AsyncIterator[Any]:
            for method in methods:
                self.fault(method, times=100, error=error, after=after)
            yield self
            self.heal()

        return {
            "config": lambda: failing(ConfigError("no such key")),
            "busy": lambda: failing(Busy("full"), ["create"]),
            "unavailable": lambda: failing(Unavailable("down")),
            "lost": lambda: failing(Unavailable("no answer"), after=True),
        }


class KillSaysYes(Fake):
    async def kill(self, id: str) -> bool:
        await super().kill(id)
        return True


class KillRaisesOnUnknown(Fake):
    async def kill(self, id: str) -> bool:
        if not await super().kill(id):
            raise Gone(f"no {id}")
        return True


class KillDoesNothing(Fake):
    async def kill(self, id: str) -> bool:
        return self.__dict__.setdefault("done", set()).__contains__(id) is False and not self.done.add(id)


class KillHidesFailure(Fake):
    async def kill(self, id: str) -> bool:
        try:
            return await super().kill(id)
        except Unavailable:
            return False


class ListIgnoresLabels(Fake):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list({}):
            yield info


class ListForgetsLabels(Fake):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list(labels):
            yield SandboxInfo(info.id, dict(labels))


class ListIsEmptyWhenDown(Fake):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        try:
            async for info in super().list(labels):
                yield info
        except Unavailable:
            return


class AttachesToAnything(Fake):
    async def attach(self, id: str) -> Any:
        return self.sandboxes.get(id) or object()


class LeaksWhenItFails(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        if spec.image not in self._images:
            box = await super().create(replace(spec, image=next(iter(self._images))))
            self.hidden.add(box.id)
            raise ImageError(f"no {spec.image}")
        return await super().create(spec)


class LeaksWhenCutOff(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        box = await super().create(spec)
        self.hidden.add(box.id)
        await asyncio.sleep(0.02)  # only now it is registered
        self.hidden.discard(box.id)
        return box


class BusyButMade(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        try:
            return await super().create(spec)
        except Busy:
            self.heal()
            await super().create(spec)
            raise


class WrongWord(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        try:
            return await super().create(spec)
        except ConfigError as exc:
            raise RuntimeError("401") from exc


class IgnoresTtl(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        box = await super().create(spec)
        box._timer.cancel()
        return box


class TakesAnyTtl(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, ttl=60))


class TakesAddressesOfTheWeb(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        return await super().create(replace(spec, network="open"))


class ExtendDoesNothing(Fake):
    async def create(self, spec: SandboxSpec) -> Any:
        box = await super().create(spec)
        box.extend = lambda ttl: asyncio.sleep(0)  # type: ignore[method-assign]
        return box


class NoExpiry(Fake):
    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        async for info in super().list(labels):
            kept = {name: value for name, value in info.labels.items() if "expires" not in name}
            yield SandboxInfo(info.id, kept)


FAKE: list[tuple[type[Fake], str]] = [
    (KillSaysYes, "kill_is_final_and_may_be_repeated"),
    (KillSaysYes, "an_unknown_id_is_nothing"),
    (KillRaisesOnUnknown, "an_unknown_id_is_nothing"),
    (KillDoesNothing, "kill_is_final_and_may_be_repeated"),
    (KillHidesFailure, "a_failing_service_is_unavailable_and_not_empty"),
    (ListIgnoresLabels, "list_finds_by_all_labels_and_gives_all"),
    (ListForgetsLabels, "list_finds_by_all_labels_and_gives_all"),
    (ListIsEmptyWhenDown, "a_failing_service_is_unavailable_and_not_empty"),
    (AttachesToAnything, "an_unknown_id_is_nothing"),
    (LeaksWhenItFails, "a_failed_create_leaves_nothing"),
    (LeaksWhenCutOff, "a_create_that_is_cut_off_hides_nothing"),
    (BusyButMade, "busy_means_that_nothing_was_created"),
    (WrongWord, "refused_credentials_are_a_config_error_of_every_call"),
    (IgnoresTtl, "a_kept_ttl_ends_the_sandbox_where_that_is_claimed"),
    (TakesAnyTtl, "a_ttl_must_be_finite_and_positive"),
    (TakesAddressesOfTheWeb, "an_allow_list_names_hosts_and_no_more"),
    (ExtendDoesNothing, "extend_moves_the_lease_where_that_is_claimed"),
    (NoExpiry, "the_expiry_is_stamped_by_the_provider_where_the_spec_has_none"),
]


@pytest.mark.parametrize("pair", FAKE, ids=lambda pair: f"{pair[0].__name__}-{pair[1]}")
async def test_a_broken_provider_is_noticed(pair: tuple[type[Fake], str], tmp_path: Path, noticed: Noticed) -> None:
    kind, check = pair
    said = {}
    for each in (Fake, kind):
        provider = each()
        image = await provider.prepare(Image(ref="registry.example/x:1"))
        (folder := tmp_path / each.__name__).mkdir()
        tested = Target(provider, image, "x", provider.exist, provider.faults())
        said[each] = await noticed(tested, check, folder)
        for box in provider.sandboxes.values():
            box.finish("the test is over")
    assert said[Fake] == "", "the whole one must pass"
    assert said[kind]

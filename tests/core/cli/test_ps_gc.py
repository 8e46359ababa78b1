"""``agent-env ps`` and ``agent-env gc``, over fakes in the place of the installed providers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent_env_core.cli.main import main
from agent_env_core.cli.ps import span
from agent_env_core.errors import ConfigError, NotSetUp, Unavailable
from agent_env_core.sandbox import survey
from agent_env_core.sandbox.contract import Image, SandboxSpec, Unused
from agent_env_core.sandbox.leases import Owner, lease_labels
from agent_env_core.testing.fake import FakeProvider

ALIVE = Owner.current()
DEAD, ELSEWHERE = replace(ALIVE, start="1"), replace(ALIVE, host="other-00000000")


class Broken(FakeProvider):
    """A provider whose engine is away."""

    def list(self, labels: Mapping[str, str]) -> Any:
        raise ConfigError("no engine here; start it")


class Strange(FakeProvider):
    """A provider that nobody uses here."""

    def list(self, labels: Mapping[str, str]) -> Any:
        raise NotSetUp("away: there is no key; make one")


class Hoarder(FakeProvider):
    """A provider that keeps images."""

    def __init__(self) -> None:
        super().__init__()
        self.images = {"one": Unused("one", "the image of env 'a'", 300 << 20), "two": Unused("two", "a cache")}
        self.stuck = ""

    async def unused(self) -> Sequence[Unused]:
        return tuple(self.images.values())

    async def prune(self, id: str) -> bool:
        if id == self.stuck:
            raise Unavailable("it is being built")
        return self.images.pop(id, None) is not None


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command over these providers."""

    def run(command: str, **providers: FakeProvider) -> Result:
        class Known:
            def known(self, kind: str) -> list[str]:
                return list(providers)

            def sandbox_provider(self, name: str) -> Any:
                return lambda config: providers[name]

        monkeypatch.setattr(survey, "plugins", Known)
        return CliRunner().invoke(main, command.split())

    return run


@pytest.fixture
def fake() -> FakeProvider:
    """One sandbox of a living owner, one of a dead one, one of another machine, and one whose lease is over."""
    fake = FakeProvider()

    async def furnish() -> None:
        image = await fake.prepare(Image(ref="registry.example/x:1"))
        for run, owner, left in (("a", ALIVE, 7200), ("b", DEAD, 60), ("c", ELSEWHERE, 60), ("d", ELSEWHERE, -600)):
            labels = {**lease_labels(owner, run, left), "agent-env.env": f"env-{run}"}
            box = await fake.create(SandboxSpec(image, 60, labels=labels))
            box._timer.cancel()  # its loop ends here

    asyncio.run(furnish())
    return fake


def test_what_there_is_and_whose(call: Callable[..., Result], fake: FakeProvider) -> None:
    result = call("ps", here=fake)
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:4] == ["PROVIDER", "SANDBOX", "RUN", "ENV"]
    assert [row.split()[1:4] for row in rows] == [[f"fake-{n}", r, f"env-{r}"] for n, r in enumerate("abcd", 1)]
    assert "alive" in rows[0]
    assert "2.0 h" in rows[0]
    assert f"dead (its owner, process {DEAD.pid}, is dead)" in rows[1]
    assert rows[2].endswith("unknown")
    assert "unknown (its lease ended 6" in rows[3]


def test_as_json(call: Callable[..., Result], fake: FakeProvider) -> None:
    report = json.loads(call("ps --json", here=fake, away=Broken()).stdout)
    assert report["format_version"] == 1
    assert report["silent"] == {"away": "no engine here; start it"}
    first = report["sandboxes"][0]
    assert (first["id"], first["owner"], first["state"], first["why"]) == ("fake-1", str(ALIVE), "alive", "")


def test_a_provider_that_cant_be_asked_is_named(call: Callable[..., Result]) -> None:
    result = call("ps", here=FakeProvider(), away=Broken())
    assert (result.exit_code, result.stdout) == (1, "there are no sandboxes\n")
    assert result.stderr == "away can't be asked: no engine here; start it\n"


@pytest.mark.parametrize("command", ["ps", "gc", "gc --yes", "gc --images --yes"])
def test_a_provider_that_nobody_set_up_is_no_failure(call: Callable[..., Result], command: str) -> None:
    result = call(command, here=FakeProvider(), away=Strange())
    assert (result.exit_code, result.stderr) == (0, "not set up here, so not asked: away\n")
    result = call(f"{command} -v", here=FakeProvider(), away=Strange())
    assert (result.exit_code, result.stderr) == (0, "away isn't set up here: there is no key; make one\n")


@pytest.mark.parametrize("command", ["ps", "ps --json", "gc", "gc --yes"])
def test_unless_it_was_asked_for_by_name(call: Callable[..., Result], command: str) -> None:
    result = call(f"{command} --provider away", here=FakeProvider(), away=Strange())
    assert result.exit_code == 1
    assert "there is no key; make one" in result.output


def test_a_program_is_told_apart_who_wasnt_asked_and_who_didnt_answer(call: Callable[..., Result]) -> None:
    result = call("ps --json", strange=Strange(), away=Broken())
    report = json.loads(result.stdout)
    assert (result.exit_code, list(report["not_set_up"]), list(report["silent"])) == (1, ["strange"], ["away"])


@pytest.mark.parametrize("command", ["ps", "gc --images --yes"])
def test_a_provider_whose_own_deadline_passes_says_so_itself(call: Callable[..., Result], command: str) -> None:
    class Slow(Hoarder):
        async def aclose(self) -> None:
            raise TimeoutError("the engine hangs")

    result = call(command, away=Slow())
    assert (result.exit_code, result.stderr) == (1, "away can't be asked: TimeoutError: the engine hangs\n")


def test_a_provider_that_never_answers_is_not_waited_for(
    call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey._ask, "__kwdefaults__", {"seconds": 0.05})
    away = FakeProvider()
    away.fault("list", hang=True)
    result = call("ps", away=away)
    assert (result.exit_code, result.stderr) == (1, "away can't be asked: it didn't answer within 0.05 s\n")


def test_one_provider_alone(call: Callable[..., Result], fake: FakeProvider) -> None:
    assert "away" not in call("ps --provider here", here=fake, away=Broken()).output


def test_gc_is_dry_at_first(call: Callable[..., Result], fake: FakeProvider) -> None:
    result = call("gc", here=fake)
    assert result.exit_code == 0
    assert fake.killed == 0
    assert "would end here sandbox fake-2: its owner" in result.stdout
    assert "2 sandboxes to end, 2 in use\nnothing was changed; --yes does it\n" in result.stdout


def test_then_it_ends_what_is_nobodys(call: Callable[..., Result], fake: FakeProvider) -> None:
    result = call("gc --yes", here=fake)
    assert (result.exit_code, sorted(fake.sandboxes)) == (0, ["fake-1", "fake-3"])
    assert "ended here sandbox fake-4: its lease ended" in result.stdout
    assert result.stdout.endswith("2 sandboxes ended\n")


def test_what_cant_be_ended_is_named_and_fails(call: Callable[..., Result], fake: FakeProvider) -> None:
    fake.fault("kill", error=Unavailable("stuck"))
    result = call("gc --yes", here=fake)
    assert result.exit_code == 1
    assert "could not end here sandbox fake-" in result.stderr
    assert call("gc", away=Broken()).exit_code == 1


def test_images(call: Callable[..., Result]) -> None:
    hoarder = Hoarder()
    result = call("gc --images", here=hoarder, plain=FakeProvider())
    assert "would remove here the image of env 'a', 300 MiB\nwould remove here a cache\n" in result.stdout
    assert "2 images to remove, 300 MiB" in result.stdout
    assert len(hoarder.images) == 2
    hoarder.stuck = "two"
    result = call("gc --images --yes", here=hoarder)
    assert (result.exit_code, list(hoarder.images)) == (1, ["two"])
    assert "could not remove a cache: it is being built" in result.stderr
    assert "1 image removed, 300 MiB" in result.stdout


def test_an_image_that_is_used_again_is_not_said_to_be_removed(call: Callable[..., Result]) -> None:
    class Used(Hoarder):
        async def prune(self, id: str) -> bool:
            return id == "one"

    result = call("gc --images --yes", here=Used())
    assert (result.exit_code, result.stderr) == (0, "")
    assert "removed here the image of env 'a', 300 MiB\n1 image removed, 300 MiB\n" in result.stdout


def test_who_cant_be_asked_is_told_once(call: Callable[..., Result]) -> None:
    class Away(Broken):
        unused = prune = Broken.list

    result = call("gc --images", away=Away())
    assert (result.exit_code, result.stderr) == (1, "away can't be asked: no engine here; start it\n")


@pytest.mark.parametrize(("seconds", "words"), [(None, "?"), (-1, "over"), (5, "5 s"), (120, "2 min"), (7200, "2.0 h")])
def test_times(seconds: float | None, words: str) -> None:
    assert span(seconds) == words

"""From what a user wrote to a host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agent_env_core.errors import ConfigError, PluginError, Unavailable
from agent_env_core.sandbox import choose
from agent_env_core.sandbox.choose import check_names, open_host, provider_names, start_host
from agent_env_core.sandbox.contract import SandboxInfo
from agent_env_core.testing.fake import FakeProvider


class Known:
    """Plugins that have these providers."""

    def __init__(self, **providers):
        self.providers, self.asked = providers, []

    def sandbox_provider(self, name):
        self.asked.append(name)
        if name not in self.providers:
            raise PluginError(f"there is no sandbox provider {name!r}")
        return lambda config: self.providers[name]


@pytest.fixture
def known(monkeypatch):
    """Replaces the installed providers; a host of them starts no reaper."""

    def replace(**providers):
        plugins = Known(**providers)
        monkeypatch.setattr(choose, "plugins", lambda: plugins)
        monkeypatch.setattr("agent_env_core.sandbox.host.ReaperProcess.start", lambda self: None)
        monkeypatch.setattr("agent_env_core.sandbox.host._warn_unarmed", lambda task: task.exception())
        return plugins

    return replace


class Unusable(FakeProvider):
    """A provider that answers nothing but this."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    async def list(self, labels) -> AsyncIterator[SandboxInfo]:
        raise self._error
        yield


def test_names_are_read():
    assert provider_names(None) == ("docker",)
    assert provider_names(" docker , process,docker") == ("docker", "process")


@pytest.mark.parametrize("text", ["", "docker,", " , "])
def test_an_empty_name_is_refused(text):
    with pytest.raises(ConfigError, match="must be a provider's name"):
        provider_names(text)


def test_an_unknown_name_lists_the_known_ones(caplog):
    with pytest.raises(PluginError, match=r"no sandbox provider 'nope'; known: .*process"):
        open_host("nope")
    with pytest.raises(PluginError, match="'nope'"):
        check_names("nope,neither")
    assert not caplog.records
    check_names("process,nope")
    [warning] = caplog.messages  # it may be a typing error, which would show only where the first can't be used
    assert warning.startswith("sandbox='process,nope': there is no sandbox provider 'nope'; known: ")


def test_docker_is_the_default(known):
    plugins = known(docker=FakeProvider())
    assert open_host(run_id="mine").run_id == "mine"
    assert plugins.asked == ["docker"]


async def test_a_single_one_says_itself_what_is_wrong(known):
    known(cloud=Unusable(ConfigError("no token; set CLOUD_TOKEN")))
    with pytest.raises(ConfigError, match=r"^no token; set CLOUD_TOKEN$"):
        await start_host("cloud")


async def test_the_first_that_can_be_used_is(known):
    fake = FakeProvider()
    known(cloud=Unusable(ConfigError("no token")), far=Unusable(Unavailable("no answer")), here=fake)
    told = []
    host = await start_host("absent,cloud,far,here", on_progress=told.append)
    assert host.provider is fake
    assert told == [
        "no sandboxes from absent: there is no sandbox provider 'absent'",
        "no sandboxes from cloud: no token",
        "no sandboxes from far: no answer",
        "sandboxes come from here (isolation: container)",
    ]
    assert fake.created == 0
    await host.aclose()


async def test_those_that_are_passed_by_are_closed(known):
    passed = Unusable(ConfigError("no"))
    known(cloud=passed, here=FakeProvider())
    host = await start_host("cloud,here")
    assert passed.closed
    await host.aclose()


async def test_one_that_does_not_answer_is_asked_no_more(known, monkeypatch):
    class Silent(FakeProvider):
        asked = 0

        async def list(self, labels) -> AsyncIterator[SandboxInfo]:
            self.asked += 1
            await asyncio.Event().wait()
            yield

    silent = Silent()
    known(cloud=silent, here=FakeProvider())
    monkeypatch.setattr(choose, "PROBE_SECONDS", 0.05)
    host = await start_host("cloud,here")
    assert (silent.asked, silent.closed) == (1, True)
    await host.aclose()


async def test_all_reasons_are_told_where_none_can_be_used(known):
    known(cloud=Unusable(ConfigError("no token")))
    with pytest.raises(ConfigError, match=r"sandbox='cloud,absent': none .*: cloud: no token; absent: there is no"):
        await start_host("cloud,absent")


async def test_limits_are_shared_between_hosts_of_one_machine(known, monkeypatch):
    monkeypatch.setenv("AGENT_ENV_MAX_RUNNING", "1")
    known(here=FakeProvider())
    one, other = open_host("here"), open_host("here")
    place = await one.place()
    assert other.spare_place() is None
    place.leave()
    other.spare_place().leave()


@pytest.mark.parametrize("variable", ["MAX_STARTING", "MAX_RUNNING", "CREATES_PER_SECOND"])
async def test_a_limit_that_is_none_is_refused_at_the_start(known, monkeypatch, variable):
    monkeypatch.setenv(f"AGENT_ENV_{variable}", "0")
    known(here=FakeProvider())
    with pytest.raises(ConfigError, match=f"^AGENT_ENV_{variable}=0 must be"):
        await start_host("here")


async def test_without_a_folder_for_them_they_are_its_own(known, monkeypatch, tmp_path, caplog):
    (tmp_path / "run").touch()
    monkeypatch.setenv("AGENT_ENV_RUN_DIR", str(tmp_path / "run"))
    known(here=FakeProvider())
    (await open_host("here").place()).leave()
    assert "limits hold for this process alone" in caplog.text

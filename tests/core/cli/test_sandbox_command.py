"""``agent-env sandbox``: the list, one provider, and the kit run by a user."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import Field, SecretStr

from agent_env_core.cli import sandbox as command_module
from agent_env_core.cli.main import main
from agent_env_core.errors import ConfigError, Unavailable
from agent_env_core.sandbox import probe
from agent_env_core.sandbox.contract import Capabilities
from agent_env_core.sandbox.settings import ProviderSettings
from agent_env_core.testing.checks import CHECKS
from agent_env_core.testing.fake import CAPABILITIES, FakeProvider


class Settings(ProviderSettings):
    token: SecretStr = Field(description="The account's token.")
    size: int = Field(2, description="Cores.")


class Paid(FakeProvider):
    """A provider of settings and an account."""

    settings_model = Settings
    made: list[Paid]

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.settings = Settings.read("paid", config)
        able = {**CAPABILITIES.__dict__, "remote": True, "build": False}
        super().__init__(capabilities=Capabilities(**able))
        Paid.made.append(self)


class Registry:
    """Stands for the installed plugins."""

    def __init__(self, **providers: Callable[[Mapping[str, Any]], Any]) -> None:
        self._providers = providers

    def known(self, kind: str) -> list[str]:
        return sorted(self._providers)

    def sandbox_provider(self, name: str) -> Callable[[Mapping[str, Any]], Any]:
        return self._providers[name]


def broken(config: Mapping[str, Any]) -> FakeProvider:
    raise ConfigError("no engine answers")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    Paid.made = []
    registry = Registry(fake=lambda config: FakeProvider(), paid=Paid, broken=broken)
    for module in (command_module, probe):
        monkeypatch.setattr(module, "plugins", lambda: registry)
    return lambda *arguments, **more: CliRunner().invoke(main, ["sandbox", *arguments], **more)


def test_the_list_says_which_can_be_used(run: Callable[..., Result]) -> None:
    lines = run("list").stdout.splitlines()
    assert lines[0] == "✗ broken  no engine answers"
    assert lines[1].startswith("✓ fake    isolation: container; builds images")
    assert lines[2] == "✗ paid    the setting 'token' must be given: The account's token."
    providers = json.loads(run("list", "--json").stdout)["providers"]
    assert [row["name"] for row in providers] == ["broken", "fake", "paid"]
    assert providers[1]["capabilities"]["ttl_enforced"] is True


def test_what_does_not_answer_can_not_be_used_and_shows_what_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = FakeProvider()
    registry = Registry(far=lambda config: provider)
    for module in (command_module, probe):
        monkeypatch.setattr(module, "plugins", lambda: registry)
    provider.fault("list", error=ConfigError("far: no engine answers; start it"), times=2)
    assert CliRunner().invoke(main, ["sandbox", "list"]).stdout == "✗ far  no engine answers; start it\n"
    shown = CliRunner().invoke(main, ["sandbox", "show", "far"]).stdout
    assert "✗ it can't be used like this: no engine answers; start it" in shown
    assert "what stands between two sandboxes" in shown


def test_one_is_shown_with_its_settings(run: Callable[..., Result]) -> None:
    words = " ".join(run("show", "paid", "--config", "token=t0p").stdout.split())
    assert "remote yes they run on another machine" in words
    assert "token SecretStr The account's token. size int 2 Cores." in words
    assert "t0p" not in words


def test_what_can_not_be_used_is_still_shown(run: Callable[..., Result]) -> None:
    report = json.loads(run("show", "paid", "--json").stdout)
    assert "must be given" in report["problem"]
    assert [row["name"] for row in report["settings"]] == ["token", "size"]
    assert "doesn't describe its settings" in run("show", "fake").stdout


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"tokn": "t"}, "paid: there is no setting 'tokn'; known: token, size"),
        ({"token": "t", "size": "big"}, "paid: size='big': Input should be a valid integer"),
        ({"token": ["s3cret"]}, "paid: token: Input should be a valid string"),
    ],
)
def test_a_wrong_setting_is_named_and_no_secret_shown(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.read("paid", config)
    assert said in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_every_capability_has_a_meaning() -> None:
    assert set(command_module.MEANINGS) == set(Capabilities.__dataclass_fields__)


def test_the_check_shows_each_with_its_time(run: Callable[..., Result]) -> None:
    done = run("check", "fake", "--only", "files")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("fake: 8 checks, one after another. They make at most 9 sandboxes, 2 at once")
    assert "✓ a folder is no file" in done.stdout
    assert "8 kept, 0 broken, 0 don't apply" in done.stdout


def test_a_broken_promise_is_an_exit_code_and_a_reason(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: FakeProvider, id: str) -> bool:
        raise Unavailable("not today")

    monkeypatch.setattr(FakeProvider, "kill", refuse)
    done = run("check", "fake", "--only", "a folder is no file")
    assert done.exit_code == 1
    assert "✗ a folder is no file" in done.stdout
    assert "can't end fake-1: not today" in done.stdout
    report = json.loads(run("check", "fake", "--only", "a_folder_is_no_file", "--json").stdout)
    assert (report["ok"], [row["outcome"] for row in report["checks"]]) == (False, ["failed"])


def test_an_account_is_asked_for_first(run: Callable[..., Result]) -> None:
    arguments = ("check", "paid", "--config", "token=t", "--only", "a_folder_is_no_file")
    refused = run(*arguments, input="n\n")
    assert refused.exit_code == 1
    assert "on your account, and cost what it charges" in refused.stdout
    assert not Paid.made[-1].calls
    assert run(*arguments, input="y\n").exit_code == 0
    assert Paid.made[-1].created == 1
    assert Paid.made[-1].closed
    assert run(*arguments, "--yes").exit_code == 0


def test_an_interrupted_check_leaves_nothing(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeProvider] = []

    class Interrupted(FakeProvider):
        def __init__(self, config: Mapping[str, Any]) -> None:
            super().__init__()
            made.append(self)

        async def create(self, spec: Any) -> Any:
            box = await super().create(spec)
            if self.created == 2:
                asyncio.get_running_loop().call_soon(_interrupt)
            return box

    def _interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command_module, "plugins", lambda: Registry(fake=Interrupted))
    done = run("check", "fake", "--only", "twenty at once")
    assert done.exit_code == 130, done.output
    assert made[0].sandboxes == {}


def test_a_pattern_that_fits_nothing_is_a_usage_error(run: Callable[..., Result]) -> None:
    done = run("check", "fake", "--only", "nothing like it")
    assert done.exit_code == 2
    assert "subjects: life, commands" in " ".join(done.output.split())


def test_the_kit_has_what_was_promised() -> None:
    assert len(CHECKS) >= 90
    assert len({check.name for check in CHECKS}) == len(CHECKS)

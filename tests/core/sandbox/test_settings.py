"""Settings of a provider: from a configuration, else from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox.settings import ProviderSettings, require_sdk


class Mine(ProviderSettings):
    region: str = Field("", description="where")
    cores: float = Field(1.0, gt=0, description="how many")
    kind: Literal["", "small", "big"] = Field("small", description="which")
    cache: Path = Field(Path("/var/cache"), description="where it is kept")


def test_what_a_configuration_leaves_out_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_MY_CLOUD_REGION", "eu")
    monkeypatch.setenv("AGENT_ENV_MY_CLOUD_CORES", "2")
    assert Mine.read("my-cloud", {"cores": 4}) == Mine(region="eu", cores=4.0)
    assert Mine.read("other", {}) == Mine()


def test_a_variable_that_does_not_fit_is_told_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_MINE_CORES", "many")
    with pytest.raises(ConfigError, match="mine: cores='many'"):
        Mine.read("mine", {})


def test_the_table_is_for_people() -> None:
    rows = {row["name"]: (row["type"], row["default"]) for row in Mine.table()}
    assert rows == {
        "region": ("str", "''"),
        "cores": ("float", "1.0"),
        "kind": ("'' | small | big", "small"),
        "cache": ("Path", "/var/cache"),
    }


def test_a_misspelt_variable_is_told_with_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_MINE_REGOIN", "eu")
    with pytest.raises(
        ConfigError, match="mine: AGENT_ENV_MINE_REGOIN is no setting; did you mean AGENT_ENV_MINE_REGION"
    ):
        Mine.read("mine", {})
    assert Mine.read("other", {}) == Mine()
    monkeypatch.delenv("AGENT_ENV_MINE_REGOIN")
    monkeypatch.setenv("AGENT_ENV_MINE_OTHERS_REGION", "eu")  # that of a provider `mine-others`
    assert Mine.read("mine", {}) == Mine()


def test_a_missing_package_is_told_with_its_extra() -> None:
    require_sdk("mine", "json")
    with pytest.raises(ConfigError, match=r"mine: the package no_such_sdk isn't installed; pip install '.*\[mine\]'"):
        require_sdk("mine", "no_such_sdk")

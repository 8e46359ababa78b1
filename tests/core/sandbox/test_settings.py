"""Settings of a provider: from a configuration, else from the environment."""

from __future__ import annotations

import pytest
from pydantic import Field

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox.settings import ProviderSettings


class Mine(ProviderSettings):
    region: str = Field("", description="where")
    cores: float = Field(1.0, gt=0, description="how many")


def test_what_a_configuration_leaves_out_is_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_MY_CLOUD_REGION", "eu")
    monkeypatch.setenv("AGENT_ENV_MY_CLOUD_CORES", "2")
    assert Mine.read("my-cloud", {"cores": 4}) == Mine(region="eu", cores=4.0)
    assert Mine.read("other", {}) == Mine()


def test_a_variable_that_does_not_fit_is_told_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_MINE_CORES", "many")
    with pytest.raises(ConfigError, match="mine: cores='many'"):
        Mine.read("mine", {})

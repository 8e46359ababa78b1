from __future__ import annotations

import pytest
from agent_env_process.provider import ProcessProvider


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("process-cache")


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """Reapers write their log here, not among this user's own files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))


@pytest.fixture
def config(cache_dir, tmp_path):
    """Settings of a provider that touches nothing of this user's own."""
    return {"cache_dir": str(cache_dir), "state_dir": str(tmp_path / "state")}


@pytest.fixture
async def provider(config):
    provider = ProcessProvider(config)
    yield provider
    await provider.aclose()

import asyncio
import logging

import pytest
from waiting import eventually

from agent_env_core.errors import ConfigError
from agent_env_core.sandbox import locks
from agent_env_core.sandbox.locks import held, lock_path, locked


def test_each_thing_of_each_provider_has_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    paths = {lock_path("docker", "a"), lock_path("docker", "b"), lock_path("e2b", "a"), lock_path("docker", "a")}
    assert len(paths) == 3
    assert all(path.is_file() for path in paths)


def test_a_folder_that_cant_be_made_is_told_with_its_fix(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"docker: can't write to .*set XDG_CACHE_HOME to a folder"):
        lock_path("docker", "a")


async def test_a_held_lock_is_waited_for_and_the_waiting_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(locks, "PATIENCE", 0.005)
    caplog.set_level(logging.INFO, "agent_env_core.sandbox.locks")
    path = tmp_path / "lock"
    async with held(path, "the first"):
        waiting = asyncio.create_task(_take(path))
        await eventually(lambda: caplog.messages)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)
    assert caplog.messages == ["waiting for another process that makes the image"]


async def test_waiting_for_a_lock_can_be_cancelled(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        waiting = asyncio.create_task(_take(path))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await asyncio.wait_for(_take(path), 60)


async def _take(path):
    async with held(path, "the image"):
        pass

"""The way to the engine."""

from __future__ import annotations

import asyncio

import pytest
from agent_env_docker import prereqs

pytestmark = pytest.mark.docker


async def test_calls_share_one_connection_pool():
    client = await asyncio.to_thread(prereqs.connect, timeout=10, connections=4)
    try:
        adapter = client.get_adapter(client.base_url)
        urls = [f"{client.base_url}/v1.41/containers/{number}" for number in range(100)]
        pools = {id(adapter.get_connection(url)) for url in urls}
        assert len(pools) == 1, "a pool for each URL is closed under a call once there are more of them than are kept"
    finally:
        client.close()

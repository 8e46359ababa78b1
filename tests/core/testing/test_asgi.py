"""The port of a fake's application is closed in whatever way its server ends."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from agent_env_core.testing.asgi import Served


async def app(scope, receive, send):
    """Answers nothing."""


@pytest.mark.parametrize("how", ["closed", "closed by who is cancelled", "never closed"])
@pytest.mark.parametrize("turns", [0, 1, 20])
def test_no_port_stays_open(how, turns):
    async def serve():
        served = await Served.start(app)
        for _ in range(turns):  # of the loop: it hasn't begun, or is about to listen, or listens
            await asyncio.sleep(0)
        if how == "closed":
            await served.close()
            await served.close()
        elif how == "closed by who is cancelled":
            closing = asyncio.create_task(served.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(serve())
        gc.collect()
    assert [str(each.message) for each in told] == []

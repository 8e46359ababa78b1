"""What one tool call costs: its time through the product and by hand, and the server's CPU beside an MCP client's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx

from bench.calls import HandPlayed
from bench.figures import Calls, Times
from bench.measure import timed

if TYPE_CHECKING:
    from agent_env_trl.environment import Environment

    from bench.product import Product

BLOCK = 100
"""Calls between two looks at a process's CPU time, which many systems count in hundredths of a second."""


def calls(product: Product, count: int) -> Calls:
    """Calls one tool of one env ``count`` times each way: through the product, by hand, and by the MCP SDK's client."""
    [environment] = environments = product.environments(1)
    try:
        product.reset(environment)
        product.probe(environment)
        return asyncio.run(_calls(product, environment, product.address(), count))
    finally:
        product.close_sessions(environments)
        product.wait_until_quiet()


async def _calls(product: Product, environment: Environment, url: str, count: int) -> Calls:
    """The product's and the hand's block this loop, on which only the SDK's client runs, and that in its turn."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    ours: list[float] = []
    direct: list[float] = []
    server_cpu: list[float] = []
    mcp_cpu: list[float] = []
    tool, arguments = product.probed
    with httpx.Client(timeout=60, trust_env=False) as client:
        env = HandPlayed(client, url)
        env.open()
        async with streamable_http_client(url + "/mcp") as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            await session.call_tool(tool, dict(arguments))
            for done in range(0, count, BLOCK):
                block = min(BLOCK, count - done)
                used = product.cpu_seconds  # the server idles while it isn't asked
                for _ in range(block):
                    ours.append(timed(lambda: product.probe(environment)))
                    direct.append(timed(lambda: env.call(tool, arguments)))
                server_cpu.append((product.cpu_seconds - used) / block)
                mcp_cpu.append(await _cpu_of(session, tool, arguments, block))
        env.close()
    return Calls(Times.of(ours), Times.of(direct), Times.of(server_cpu), Times.of(mcp_cpu))


async def _cpu_of(session: Any, tool: str, arguments: Mapping[str, Any], count: int) -> float:
    """CPU seconds of a call by the SDK's client, which is all that this process does meanwhile."""
    began = time.process_time()
    for _ in range(count):
        await session.call_tool(tool, dict(arguments))
    return (time.process_time() - began) / count

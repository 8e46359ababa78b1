"""Scores an answer by whether it names the hour."""

from __future__ import annotations

from typing import Any

from agentenv_protocol import client


async def verify(mcp_url: str) -> list[dict[str, Any]]:
    """One row: whether a mail that was sent says nine."""
    answer = await client.get_data(mcp_url.removesuffix("/mcp"))
    sent = answer.parts[0].data["sent"]
    return [{"id": "hour", "description": "the answer names the hour", "result": any("nine" in text for text in sent)}]

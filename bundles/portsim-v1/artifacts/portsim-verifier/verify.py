"""Grades an episode of PortSim from the env's own record of its turns, never from what the model said."""

from __future__ import annotations

from typing import Any

from agentenv_protocol import client


async def verify(mcp_url: str) -> list[dict[str, Any]]:
    """One row for each turn that was planned; their mean is the score.

    Raises:
        RuntimeError: The env has no task loaded, or turns were left out: a broken world is not scored.
    """
    answer = await client.get_data(mcp_url.removesuffix("/mcp"))
    report = answer.parts[0].data
    if not report["turns"] or report["left"]:
        raise RuntimeError(f"the env has {len(report['turns'])} turns, and {report['left']} notices never came")
    return [
        {
            "id": f"turn-{number}",
            "description": "cost saved against first come, first served, as a share of what can be saved",
            "result": turn["optimal"],
            **turn,
        }
        for number, turn in enumerate(report["turns"], 1)
    ]

"""Grades an episode of GridSim from the env's own report, never from what the model said."""

from __future__ import annotations

from typing import Any

from agentenv_protocol import client


async def verify(mcp_url: str) -> list[dict[str, Any]]:
    """One row that scores, and three that only tell why (weight 0).

    Raises:
        RuntimeError: The env has no day loaded: a broken world is not scored.
    """
    answer = await client.get_data(mcp_url.removesuffix("/mcp"))
    report = answer.parts[0].data
    if report.get("date") is None:
        raise RuntimeError("the env has no day loaded, so there is nothing to grade")
    return [
        {
            "id": "profit",
            "description": "profit against the best schedule of the day",
            "score": report["reward"],
            "result": report["reward"] > 0,
            **{key: report[key] for key in ("date", "schedule", "profit_usd", "optimum_usd")},
        },
        {"id": "submitted", "result": report["submitted"], "weight": 0},
        {"id": "feasible", "result": report["feasible"], "weight": 0},
        {"id": "optimal", "result": report["optimal"], "weight": 0},
    ]

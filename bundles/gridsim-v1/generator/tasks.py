"""A day as a task: what the model is told, and the steps that play and grade it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any

from paths import battery

HUB = "HB_HUBAVG"
SYSTEM_PROMPT = """\
You operate a grid battery in the ERCOT day-ahead market (DAM) for one operating day. The user gives you the day as
JSON: the battery's limits and the 24 hourly prices, hour 0 first.

Decide for every hour whether to charge a block of energy (1), to sell one (-1) or to idle (0), so that the day earns
as much as it can:
- The battery starts at start_soc_blocks and may never hold less than 0 or more than max_soc_blocks.
- A block charged costs price x block_mwh. A block sold brings price x block_mwh x round_trip_efficiency.
- What is left in the battery after hour 23 is worth nothing.

Call submit_schedule once, with 24 integers. Without a submission the day counts as lost; a schedule that breaks a
limit or loses money earns nothing either, and an idle day earns little. After the report, end your turn with end_turn.\
"""


def task_id(date: dt.date, hub: str = HUB) -> str:
    """The task's name: day-ahead market, day, hub, hourly prices; ``r`` is for a battery that starts at rest."""
    return f"dam-v1-{date.isoformat()}-{hub}-1h-r"


def user_prompt(date: dt.date, prices: Sequence[float], hub: str = HUB) -> str:
    """The day as the model reads it; every number that the env computes with is in it."""
    return json.dumps(
        {
            "task_id": task_id(date, hub),
            "tier": "foresight",
            "market": "ERCOT DAM",
            "hub": hub,
            "date": date.isoformat(),
            "weekday": date.strftime("%A"),
            "battery": battery.BATTERY.limits(),
            "prices_usd_per_mwh": list(prices),
        }
    )


def steps(date: dt.date, prices: Sequence[float], hub: str = HUB) -> list[dict[str, Any]]:
    """The task's steps: deploy, load the day, leave the model one tool, let it play, grade."""
    return [
        {"id": "env", "type": "deploy_env", "env_id": "gridsim", "ttl_seconds": 7200},
        {
            "id": "load",
            "type": "apply_server_config",
            "env_id": "gridsim",
            "directives": [{"service": "gridsim", "uri": "urn:gridsim:load/v1", "args": {"date": date.isoformat()}}],
        },
        {
            "id": "one-tool",
            "type": "modify_env_tool_access",
            "env_id": "gridsim",
            "action": "disable",
            "role": "default",
            "tools": ["try_schedule", "read_prices"],
        },
        {"id": "operator", "type": "deploy_agent", "env_ids": ["gridsim"]},
        {
            "id": "operate",
            "type": "prompt_agent",
            "prompt_id": "day",
            "timeout_seconds": 1800,
            "system_prompt": SYSTEM_PROMPT,
            "prompt": user_prompt(date, prices, hub),
        },
        {
            "id": "grade",
            "type": "env_outcome_verifier",
            "env_id": "gridsim",
            "file_artifact_id": "gridsim-verifier",
            "verifier_id": "gridsim",
            "score_aggregator": "weighted_average",
        },
    ]

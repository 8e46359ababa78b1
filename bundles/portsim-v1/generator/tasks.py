"""A scenario as a task: what the model is told in each turn, and the steps that play and grade it."""

from __future__ import annotations

import json
from typing import Any

SYSTEM_PROMPT = """\
You are the berth planner of a port. Ships arrive at known hours, and each of them occupies one berth for its hours.
Plan where each ship berths and at which hour it starts, so that the cost is as low as it can be: every hour from a
ship's arrival until it has left costs its priority.
- A ship never starts before its arrival, nor in the past, and fits a berth that is at least as long as it is.
- A berth takes one ship at a time. A ship that has berthed stays where it is until it is done.

Use list_ships to see how things stand, check_plan to try a plan, and submit_plan once in every turn: the first plan
that can be kept is final. Then end your turn with end_turn; news may come, and the rest has to be planned again.\
"""


def steps(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """The task's steps: deploy, load, and for every turn its news and its prompt; at last the grade."""
    first = {key: scenario[key] for key in ("berths", "ships")}
    made: list[dict[str, Any]] = [
        {"id": "env", "type": "deploy_env", "env_id": "portsim", "ttl_seconds": 7200},
        _extension("load", "urn:portsim:load/v1", {"scenario": scenario}),
        {"id": "planner", "type": "deploy_agent", "env_ids": ["portsim"]},
        _prompt("plan", f"It is hour 0. Plan all ships:\n{json.dumps(first, ensure_ascii=False)}", SYSTEM_PROMPT),
    ]
    for number, notice in enumerate(scenario["notices"], 1):
        made += [
            _extension(f"notice-{number}", "urn:portsim:notice/v1", {}),
            _prompt(
                f"replan-{number}", f"It is hour {notice['now']}. {notice['news']} Plan again what hasn't berthed."
            ),
        ]
    return [
        *made,
        {
            "id": "grade",
            "type": "env_outcome_verifier",
            "env_id": "portsim",
            "file_artifact_id": "portsim-verifier",
            "verifier_id": "portsim",
            "score_aggregator": "weighted_average",
        },
    ]


def _extension(step_id: str, uri: str, args: dict[str, Any]) -> dict[str, Any]:
    directive = {"service": "portsim", "uri": uri, "args": args}
    return {"id": step_id, "type": "apply_server_config", "env_id": "portsim", "directives": [directive]}


def _prompt(step_id: str, prompt: str, system_prompt: str | None = None) -> dict[str, Any]:
    step = {"id": step_id, "type": "prompt_agent", "prompt_id": step_id, "timeout_seconds": 1800, "prompt": prompt}
    return step if system_prompt is None else step | {"system_prompt": system_prompt}

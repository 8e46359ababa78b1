"""GridSim as it is served, on both providers: the session of the guide, and grades that are the battery's own."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv

IDLE_REPORT = (
    '{"submitted":true,"feasible":true,"truncated_at":null,"violation":null,"soc_path":['
    + ",".join(["0"] * 24)
    + '],"profit_usd":0.0}'
)


@pytest.fixture(scope="module", params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def env(request: pytest.FixtureRequest, gridsim_bundle: Path) -> Iterator[AgentEnv]:
    with AgentEnv.local(gridsim_bundle, split="train", sandbox=request.param) as made:
        yield made


def prices(row: dict[str, Any]) -> list[float]:
    found: list[float] = json.loads(row["prompt"][-1]["content"])["prices_usd_per_mwh"]
    return found


def test_the_session_of_the_guide(env: AgentEnv) -> None:
    assert (len(env.dataset), len(env.dataset_for("eval"))) == (2000, 200)
    environment = env.factory()
    environment.reset(**env.dataset[0])
    assert environment.submit_schedule(actions=[0] * 23) == (
        '{"submitted":false,"error":"expected exactly 24 integers, got 23"}'
    )
    assert environment.submit_schedule(actions=[0] * 24) == IDLE_REPORT
    assert environment.get_reward() == 0.2


def test_the_model_gets_one_tool(env: AgentEnv) -> None:
    assert [name for name in vars(env.factory) if not name.startswith("_")] == ["submit_schedule", "end_turn"]
    assert str(inspect.signature(env.factory.submit_schedule)) == "(self, *, actions: list[int]) -> str"
    assert env.factory.__name__ == "gridsim-v1"


def test_a_row_is_the_day_as_chat(env: AgentEnv) -> None:
    row = env.dataset[3]
    system, user = row["prompt"]
    assert system["role"] == "system"
    assert system["content"].startswith(
        "You operate a grid battery in the ERCOT day-ahead market (DAM) for one operating day"
    )
    task = json.loads(user["content"])
    assert user["content"].startswith('{"task_id": "dam-v1-')
    assert row["task_id"].endswith(f"/gridsim-v1/{task['task_id']}")
    assert (row["split"], row["index"], len(task["prices_usd_per_mwh"])) == ("train", 3, 24)


def test_what_is_refused_may_be_submitted_again_and_the_first_schedule_stands(env: AgentEnv) -> None:
    environment = env.factory()
    row = env.dataset[1]
    environment.reset(**row)
    for actions in ([0] * 25, [True] * 24, ["0"] * 24, [0.0] * 24, [9] + [0] * 23, "idle"):
        answer = json.loads(environment.submit_schedule(actions=actions))
        assert answer["submitted"] is False
        assert answer["error"]
    assert environment.submit_schedule(actions=[0] * 24) == IDLE_REPORT
    again = json.loads(environment.submit_schedule(actions=[1, -1] + [0] * 22))
    assert again == {"submitted": False, "error": "a schedule was already submitted, and the first one is final"}
    assert environment.end_turn(response="Done.") == "The episode has ended."
    assert environment.get_reward() == 0.2


def test_the_env_grades_as_the_battery_does(env: AgentEnv, battery: Any, baselines: Any) -> None:
    rows = [env.dataset[number] for number in range(0, 2000, 500)]
    rules = baselines.baselines([prices(row) for row in rows])
    broken = {"loses": [1, -1] * 12, "infeasible": [0] * 22 + [-1, 1]}
    environment = env.factory()
    for row, (name, rule) in zip([*rows, rows[0], rows[1]], [*rules.items(), *broken.items()], strict=True):
        schedule = rule if name in broken else list(rule(prices(row)))
        cents = battery.to_cents(prices(row))
        environment.reset(**row)
        answer = json.loads(environment.submit_schedule(actions=schedule))
        assert answer == json.loads(json.dumps(battery.report(battery.BATTERY, cents, schedule)))
        assert environment.get_reward() == pytest.approx(battery.grade(battery.BATTERY, cents, schedule).reward), name


def test_no_submission_is_worth_nothing(env: AgentEnv) -> None:
    environment = env.factory()
    environment.reset(**env.dataset[2])
    assert environment.end_turn() == "The episode has ended."
    assert environment.get_reward() == 0.0


def test_the_warm_start_rows_hold_the_tools_as_they_are_rendered(env: AgentEnv, rows: Any) -> None:
    from transformers.utils import get_json_schema

    environment = env.factory()
    schemas = [get_json_schema(getattr(environment, name)) for name in ("end_turn", "submit_schedule")]
    assert json.loads(rows.TOOLS) == schemas

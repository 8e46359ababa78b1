"""The generated bundle, and how it plays: three turns, three tools, each turn graded."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_env.training.trl import AgentEnv

from agent_env_core.bundle import load_bundle
from agent_env_core.steps.base import declaration

GENERATOR = Path(__file__).resolve().parents[2] / "bundles" / "portsim-v1" / "generator"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".json", ".toml")}


def scenario(bundle: Path, row: dict[str, Any]) -> dict[str, Any]:
    name = str(row["task_id"]).rpartition("/")[2]
    steps = {step["id"]: step for step in json.loads((bundle / "tasks" / f"{name}.json").read_text("utf-8"))}
    found: dict[str, Any] = steps["load"]["directives"][0]["args"]["scenario"]
    return found


def test_the_same_seed_makes_the_same_files(portsim_bundle: Path, tmp_path: Path) -> None:
    program = [sys.executable, str(GENERATOR)]
    few = ["--train-tasks", "8", "--eval-tasks", "4", "--out", str(tmp_path / "portsim-v1")]
    subprocess.run([*program, *few], check=True, capture_output=True, timeout=60)
    again = files(tmp_path)
    assert again == files(portsim_bundle)
    subprocess.run([*program, *few, "--seed", "1"], check=True, capture_output=True, timeout=60)
    assert files(tmp_path) != again


def test_splits_share_no_scenario_and_every_turn_has_something_to_save(portsim_bundle: Path, port: Any) -> None:
    bundle = load_bundle(portsim_bundle, declaration)
    assert {name: len(tasks) for name, tasks in bundle.splits().items()} == {
        "all": 12, "train-standard": 8, "eval-standard": 4,
    }  # fmt: skip
    seen = set()
    for task in bundle.tasks:
        here = scenario(portsim_bundle, {"task_id": task.id})
        seen.add(json.dumps(here["ships"]))
        situation, notices = port.read_scenario(here)
        assert len(notices) == 2
        for notice in (*notices, None):
            best = port.optimum(situation)
            assert port.cost(situation, port.first_come(situation)) - port.cost(situation, best) >= 6
            if notice is not None:
                situation = port.after_notice(situation, best, notice)
    assert len(seen) == 12


@pytest.fixture(scope="module")
def env(portsim_bundle: Path) -> Iterator[AgentEnv]:
    with AgentEnv.local(portsim_bundle, split="train-standard", sandbox="process") as made:
        yield made


def test_three_tools_with_the_shape_of_a_plan(env: AgentEnv) -> None:
    from transformers.utils import get_json_schema

    assert env.factory.__name__ == "portsim-v1"
    names = [name for name in vars(env.factory) if not name.startswith("_")]
    assert names == ["check_plan", "list_ships", "submit_plan", "end_turn"]
    assert list(inspect.signature(env.factory.submit_plan).parameters) == ["self", "plan"]
    shown = json.dumps(get_json_schema(env.factory().submit_plan))
    assert all(word in shown for word in ("ship", "berth", "start", "The hour it starts there."))


def play(bundle: Path, env: AgentEnv, row: dict[str, Any], plan: Callable[[Any], Any], port: Any) -> float | None:
    """Plays the turns of a row beside the rules of the quay; returns the reward."""
    situation, notices = port.read_scenario(scenario(bundle, row))
    environment = env.factory()
    environment.reset(**row)
    for notice in (*notices, None):
        state = json.loads(environment.list_ships())
        assert state["ships"] == [vars(ship) for ship in situation.open]
        assert (state["now"], state["berthed"]) == (situation.now, port.lines(situation.begun))
        chosen = plan(situation)
        if chosen is not None:
            paid = port.cost(situation, chosen)
            lines = port.lines(chosen)
            assert json.loads(environment.check_plan(plan=lines)) == {"feasible": True, "cost": paid}
            assert json.loads(environment.submit_plan(plan=lines)) == {"submitted": True, "cost": paid}
            assert "the first one is final" in environment.submit_plan(plan=lines)
        said = environment.end_turn(response="Done.")
        if notice is None:
            assert said == "The episode has ended."
        else:
            assert said.startswith(f"It is hour {notice['now']}. {notice['news']}")
            in_force = port.first_come(situation) if chosen is None else chosen
            situation = port.after_notice(situation, in_force, notice)
    reward: float | None = environment.get_reward()
    return reward


def test_the_best_plans_earn_1_and_others_less(portsim_bundle: Path, env: AgentEnv, port: Any) -> None:
    row = env.dataset[0]
    assert play(portsim_bundle, env, row, port.optimum, port) == 1.0
    assert play(portsim_bundle, env, row, port.first_come, port) == 0.0
    assert play(portsim_bundle, env, row, lambda situation: None, port) == 0.0


def test_the_reward_is_the_mean_of_the_turns(portsim_bundle: Path, env: AgentEnv, port: Any) -> None:
    row = env.dataset[1]

    def only_the_first(situation: Any) -> Any:
        return port.optimum(situation) if situation.now == 0 else None

    assert play(portsim_bundle, env, row, only_the_first, port) == pytest.approx(1 / 3)


def test_a_plan_that_is_refused_may_be_mended(env: AgentEnv) -> None:
    environment = env.factory()
    environment.reset(**env.dataset[2])
    for plan in ([], "later", [{"ship": "Nobody", "berth": "North", "start": 1}]):
        answer = json.loads(environment.submit_plan(plan=plan))
        assert answer["submitted"] is False
        assert answer["error"]
    assert environment.get_reward() == 0.0

"""The generated bundle: what it holds, that it is the same each time, and that its days are varied."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_env_core.bundle import load_bundle
from agent_env_core.steps.base import declaration


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, generate: Any) -> Path:
    """A bundle and its rows, generated into a folder of their own."""
    out = tmp_path_factory.mktemp("generated")
    generate.main(["--out", str(out), "--seed", "7"])
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def dates(bundle: Path, split: str, baselines: Any) -> list[Any]:
    return list(baselines.split_days(bundle)[split])


def test_the_same_seed_makes_the_same_files(generated: Path, tmp_path: Path, gridsim_bundle: Path) -> None:
    program = [sys.executable, str(gridsim_bundle / "generator"), "--out", str(tmp_path)]
    subprocess.run([*program, "--seed", "7"], check=True, capture_output=True, timeout=60)
    again = files(tmp_path)
    assert again == files(generated)
    subprocess.run([*program, "--seed", "8"], check=True, capture_output=True, timeout=60)
    assert files(tmp_path) != again


def test_the_bundle_loads_with_its_splits(generated: Path) -> None:
    bundle = load_bundle(generated / "bundles" / "gridsim-v1", declaration)
    splits = bundle.splits()
    assert {name: len(tasks) for name, tasks in splits.items()} == {"all": 2200, "train": 2000, "eval": 200}
    days = {name: [dt.date.fromisoformat(task.name[7:17]) for task in splits[name]] for name in ("train", "eval")}
    assert {day.year for day in days["train"]} == set(range(2014, 2025))
    assert {day.year for day in days["eval"]} == {2025}
    assert splits["train"][0].name == f"dam-v1-{days['train'][0]}-HB_HUBAVG-1h-r"


def test_a_task_tells_the_model_what_the_env_computes_with(generated: Path, battery: Any) -> None:
    bundle = generated / "bundles" / "gridsim-v1"
    for path in sorted((bundle / "tasks").iterdir())[::400]:
        steps = {step["id"]: step for step in json.loads(path.read_text("utf-8"))}
        prompt = json.loads(steps["operate"]["prompt"])
        assert list(prompt)[:3] == ["task_id", "tier", "market"]
        assert prompt["task_id"] == path.stem
        assert prompt["battery"] == battery.BATTERY.limits()
        date = steps["load"]["directives"][0]["args"]["date"]
        pack = json.loads((bundle / "envs" / "gridsim" / "prices" / f"{date[:4]}.json").read_text("utf-8"))
        assert prompt["prices_usd_per_mwh"] == pack[date]
        assert prompt["date"] == date


def test_the_days_are_varied_and_worth_trading(generated: Path, baselines: Any, battery: Any, days: Any) -> None:
    split = baselines.split_days(generated / "bundles" / "gridsim-v1")
    rules = baselines.baselines(split["train"])
    reward = {name: baselines.summary(baselines.rewards(rule, split["eval"])).reward for name, rule in rules.items()}
    assert reward["idle"] == pytest.approx(battery.IDLE_REWARD)
    assert reward["optimum"] == 1
    assert battery.IDLE_REWARD < reward["best constant"] < 0.5
    assert reward["best constant"] < reward["greedy"] < 0.8
    prices = [day for part in split.values() for day in part]
    assert all(len(day) == 24 for day in prices)
    assert {day.index(max(day)) for day in prices} == set(range(24))
    assert 0.02 < sum(min(day) < 0 for day in prices) / len(prices) < 0.3
    assert 0.02 < sum(max(day) > 150 for day in prices) / len(prices) < 0.3
    for day in prices:
        _, best = battery.optimum(battery.BATTERY, battery.to_cents(day))
        assert battery.to_usd(best) >= days.MIN_PROFIT_USD


def test_no_other_constant_schedule_is_better(generated: Path, baselines: Any, battery: Any) -> None:
    train = baselines.split_days(generated / "bundles" / "gridsim-v1")["train"][::4]
    fitted = baselines.best_constant(train)

    def score(schedule: tuple[int, ...]) -> float:
        return baselines.summary(baselines.rewards(lambda day: schedule, train)).reward

    others = {tuple(battery.optimum(battery.BATTERY, battery.to_cents(day))[0]) for day in train[::10]}
    assert score(fitted) >= max(map(score, others))


def test_a_warm_start_row_is_the_task_and_its_best_schedule(generated: Path, battery: Any, rows: Any) -> None:
    lines = (generated / "sft" / "gridsim-v1" / "train.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 2000
    bundle = generated / "bundles" / "gridsim-v1"
    for line in lines[::250]:
        row = json.loads(line)
        task = json.loads(row["prompt"][1]["content"])
        steps = {step["id"]: step for step in json.loads((bundle / "tasks" / f"{task['task_id']}.json").read_text())}
        told = [steps["operate"]["system_prompt"], steps["operate"]["prompt"]]
        assert [message["content"] for message in row["prompt"]] == told
        (answer,) = row["completion"]
        assert "\n" not in answer["content"]
        (call,) = answer["tool_calls"]
        cents = battery.to_cents(task["prices_usd_per_mwh"])
        assert battery.grade(battery.BATTERY, cents, call["function"]["arguments"]["actions"]).optimal
        assert json.loads(row["tools"]) == json.loads(rows.TOOLS)


def test_the_rationale_is_one_line_about_the_schedule(rows: Any) -> None:
    prices = [float(hour) for hour in range(24)]
    assert (
        rows.rationale([1, 1] + [0] * 20 + [-1, -1], prices)
        == "Charge in hours 0-1 at 0.50, sell in hours 22-23 at 22.50."
    )
    assert rows.rationale([0] * 24, prices) == "Idle all day."


ERCOT = "DeliveryDate,HourEnding,SettlementPoint,SettlementPointPrice\n"


def csv_of(text: str, tmp_path: Path) -> Path:
    path = tmp_path / "prices.csv"
    path.write_text(text, "utf-8")
    return path


def test_real_prices_come_from_a_csv(days: Any, tmp_path: Path) -> None:
    lines = [f"03/0{day}/2021,{hour:02}:00,{hub},{hour + day}.5\n"
             for day in (1, 2) for hour in range(1, 25) for hub in ("HB_HUBAVG", "HB_WEST")]  # fmt: skip
    found = days.from_csv(csv_of(ERCOT + "".join(lines[:-2]), tmp_path), "HB_HUBAVG")
    assert found == {dt.date(2021, 3, 1): [hour + 1.5 for hour in range(1, 25)]}, "the second day lacks an hour"


def test_a_csv_may_be_simpler(days: Any, tmp_path: Path) -> None:
    text = "Date,Hour,Price\n" + "".join(f"2021-07-04,{hour},{hour}\n" for hour in range(24))
    assert days.from_csv(csv_of(text, tmp_path), "HB_HUBAVG") == {dt.date(2021, 7, 4): [float(h) for h in range(24)]}


def test_the_hour_that_a_clock_change_doubles_leaves_the_day_out(days: Any, tmp_path: Path) -> None:
    hours = [*range(24), 1]
    text = "date,hour,price\n" + "".join(f"2021-11-07,{hour},1\n" for hour in hours)
    assert days.from_csv(csv_of(text, tmp_path), "HB_HUBAVG") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date,hour\n2021-07-04,0\n", "no column called price"),
        ("date,hour,price\n2021-07-04,0,dear\n", "line 2: could not convert"),
        ("date,hour,price\nyesterday,0,1\n", "line 2: Invalid isoformat"),
        ("date,hour,price\n2021-07-04,0\n", "line 2"),
    ],
)
def test_a_csv_that_cant_be_read_says_where(days: Any, tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(days.GeneratorError, match=words):
        days.from_csv(csv_of(text, tmp_path), "HB_HUBAVG")


def test_a_csv_makes_a_whole_bundle(generate: Any, days: Any, tmp_path: Path) -> None:
    made = days.synthetic(3, dt.date(2023, 1, 1), dt.date(2023, 3, 31))
    lines = (f"{date},{hour},{price}\n" for date, day in made.items() for hour, price in enumerate(day))
    source = csv_of("date,hour,price\n" + "".join(lines), tmp_path)
    arguments = ["--csv", str(source), "--eval-from", "2023-03-01", "--hub", "HB_WEST", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"2000 days before 2023-03-01 are asked for, and only .* --train-days"):
        generate.main(arguments)
    generate.main([*arguments, "--train-days", "20", "--eval-days", "5"])
    bundle = load_bundle(tmp_path / "out" / "bundles" / "gridsim-v1", declaration)
    assert {name: len(tasks) for name, tasks in bundle.splits().items()} == {"all": 25, "train": 20, "eval": 5}
    assert "HB_WEST" in bundle.tasks[0].name

"""Makes the GridSim bundle's days: price packs, tasks, the train and eval splits, and rows for a warm start.

    python bundles/gridsim-v1/generator/generate.py
    python bundles/gridsim-v1/generator/generate.py --csv dam_prices.csv

The same seed gives the same files. Standard library only.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import days as day_source
import rows
import tasks
from paths import BUNDLE, ENV

FIRST, LAST = dt.date(2014, 1, 1), dt.date(2025, 12, 31)
EVAL_FROM = dt.date(2025, 1, 1)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    options = _parser().parse_args(argv)
    begun = time.monotonic()
    try:
        if options.csv is None:
            days = day_source.synthetic(options.seed, FIRST, LAST)
        else:
            days = day_source.from_csv(options.csv, options.hub)
        chosen = day_source.choose(
            days, options.seed, train=options.train_days, held_out=options.eval_days, eval_from=options.eval_from
        )
    except (day_source.GeneratorError, OSError) as exc:
        raise SystemExit(f"error: {exc}") from exc
    bundle = options.out / "bundles" / BUNDLE.name
    write_bundle(bundle, chosen, options.hub)
    warm_start = options.out / "sft" / BUNDLE.name / "train.jsonl"
    rows.write(warm_start, [rows.row(date, prices, options.hub) for date, prices in chosen.train.items()])
    print(f"{len(chosen.train)} train days and {len(chosen.eval)} eval days in {bundle}")
    print(f"their best schedules in {warm_start} ({time.monotonic() - begun:.1f} s)")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Makes the days of the GridSim bundle.")
    add = parser.add_argument
    add("--seed", type=int, default=0, help="which synthetic days, and which of all days become tasks (default: 0)")
    add("--csv", type=Path, help="a CSV of real hourly prices, instead of synthetic ones")
    add("--hub", default=tasks.HUB, help="the settlement point, in prompts and in the CSV (default: %(default)s)")
    add("--train-days", type=int, default=2000, help="default: %(default)s")
    add("--eval-days", type=int, default=200, help="default: %(default)s")
    add(
        "--eval-from",
        type=dt.date.fromisoformat,
        default=EVAL_FROM,
        help="where eval days begin (default: %(default)s)",
    )
    add("--out", type=Path, default=BUNDLE.parent.parent, help="the folder that gets bundles/ and sft/ (default: here)")
    return parser


def write_bundle(bundle: Path, chosen: day_source.Chosen, hub: str) -> None:
    """Writes packs, tasks and evals into ``bundle``, in place of what an earlier run left there."""
    if bundle.resolve() != BUNDLE:
        shutil.copytree(BUNDLE / "artifacts", bundle / "artifacts", dirs_exist_ok=True, ignore=_leavings)
        shutil.copytree(ENV, bundle / "envs" / "gridsim", dirs_exist_ok=True, ignore=_leavings)
        shutil.copy(BUNDLE / "README.md", bundle / "README.md")
    every = {**chosen.train, **chosen.eval}
    packs: dict[int, dict[str, list[float]]] = defaultdict(dict)
    for date, prices in every.items():
        packs[date.year][date.isoformat()] = prices
    _replace(
        bundle / "envs" / "gridsim" / "prices",
        {f"{year}.json": json.dumps(pack, separators=(",", ":")) for year, pack in packs.items()},
    )
    # Evals before tasks: a folder of tasks means that a run got to its end.
    splits = {"train": chosen.train, "eval": chosen.eval}
    _replace(bundle / "evals", {f"{name}.toml": _eval(list(part), hub) for name, part in splits.items()})
    _replace(
        bundle / "tasks",
        {
            f"{tasks.task_id(date, hub)}.json": json.dumps(tasks.steps(date, prices, hub), indent=1)
            for date, prices in every.items()
        },
    )


def _leavings(folder: str, names: list[str]) -> set[str]:
    return {"__pycache__", "prices"} & set(names)


def _eval(dates: Sequence[dt.date], hub: str) -> str:
    listed = "".join(f'  "{tasks.task_id(date, hub)}",\n' for date in dates)
    return f"tasks = [\n{listed}]\n"


def _replace(folder: Path, files: dict[str, str]) -> None:
    """Makes ``folder`` hold ``files`` and nothing else; until that is done it holds what it held before."""
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for name, text in files.items():
        (new / name).write_text(text, "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


if __name__ == "__main__":
    main()

"""Makes the PortSim bundle's tasks and splits: ``python bundles/portsim-v1/generator [--seed N]``.

The same seed gives the same files. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import scenarios
import tasks
from paths import BUNDLE


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Makes the tasks of the PortSim bundle.")
    parser.add_argument("--seed", type=int, default=0, help="which scenarios (default: 0)")
    parser.add_argument("--train-tasks", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--eval-tasks", type=int, default=50, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=BUNDLE, help="the bundle's folder (default: where this lies)")
    options = parser.parse_args(argv)
    begun = time.monotonic()
    counts = {"train-standard": options.train_tasks, "eval-standard": options.eval_tasks}
    write(options.out, counts, options.seed)
    made = " and ".join(f"{count} {split}" for split, count in counts.items())
    print(f"{made} tasks in {options.out} ({time.monotonic() - begun:.1f} s)")


def write(bundle: Path, counts: dict[str, int], seed: int) -> None:
    """Writes the tasks of each split, and the splits, in place of what an earlier run left in ``bundle``."""
    if bundle.resolve() != BUNDLE:
        shutil.copytree(
            BUNDLE,
            bundle,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("tasks", "evals", "__pycache__", "generator"),
        )
    for folder in ("tasks", "evals"):
        shutil.rmtree(bundle / folder, ignore_errors=True)
        (bundle / folder).mkdir()
    for split, count in counts.items():
        names = [f"{split}-{number:04}" for number in range(1, count + 1)]
        for name, scenario in zip(names, islice(scenarios.scenarios(seed, split), count), strict=True):
            text = json.dumps(tasks.steps(scenario), ensure_ascii=False, indent=1)
            (bundle / "tasks" / f"{name}.json").write_text(text, "utf-8")
        listed = "".join(f'  "{name}",\n' for name in names)
        (bundle / "evals" / f"{split}.toml").write_text(f"tasks = [\n{listed}]\n", "utf-8")


if __name__ == "__main__":
    main()

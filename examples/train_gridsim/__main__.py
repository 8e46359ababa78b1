"""The demo's command line: ``python -m examples.train_gridsim``."""

from __future__ import annotations

import os

# Before torch is imported: small matrices are slower on several threads, and the envs need the other cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agent_env_core.errors import AgentEnvError
from examples.train_gridsim.settings import BUNDLE, WARM_START, Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the demo; returns the exit status: 0 when the trained model is as good as it must be."""
    options = _parser().parse_args(argv)
    console = Console()
    if not (BUNDLE / "tasks").is_dir() or not WARM_START.is_file():
        console.print(f"the days of the bundle aren't there yet: run python {BUNDLE / 'generator'} (make setup does)")
        return 2
    settings = Settings(
        sandbox=_sandbox(options.sandbox, console),
        sft_steps=options.sft_steps,
        grpo_steps=options.grpo_steps,
        eval_days=options.eval_days,
        out=options.out.resolve(),
        seed=options.seed,
    )
    settings.out.mkdir(parents=True, exist_ok=True)
    _quiet()
    from examples.train_gridsim import report
    from examples.train_gridsim.demo import Demo

    try:
        results = Demo(settings, console).run()
    except AgentEnvError as exc:
        console.print(f"error: {exc}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; what was deployed is gone")  # the server ended with its `with` block
        return 130
    report.show(results, console)
    report.save(results, settings.out)
    console.print(f"Reward curve and numbers: {settings.out / 'reward_curve.png'}, {settings.out / 'results.json'}")
    problems = results.problems()
    for problem in problems:
        console.print(f"not as it should be: {problem}", style="red")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    defaults = Settings(sandbox="", out=Path("out") / "demo")
    parser = argparse.ArgumentParser(
        prog="python -m examples.train_gridsim",
        description="Serves GridSim, warm-starts a tiny model, trains it with TRL's GRPO, and compares.",
    )
    add = parser.add_argument
    add("--sandbox", choices=("auto", "docker", "process"), default="auto", help="default: Docker where it answers")
    add("--sft-steps", type=_positive, default=defaults.sft_steps, help="default: %(default)s")
    add("--grpo-steps", type=_positive, default=defaults.grpo_steps, help="default: %(default)s")
    add("--eval-days", type=_positive, default=defaults.eval_days, help="of the 200 eval days (default: %(default)s)")
    add("--out", type=Path, default=defaults.out, help="default: %(default)s")
    add("--seed", type=int, default=defaults.seed, help="default: %(default)s")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _sandbox(asked: str, console: Console) -> str:
    """The provider to use; says which, and why."""
    if asked != "auto":
        return asked
    from agent_env_core.sandbox.probe import look

    problem = look("docker", seconds=10).problem
    if not problem:
        console.print("A Docker engine answers: each episode's env gets a container of its own.")
        return "docker"
    console.print(f"No Docker here ({problem}): each episode's env gets a process of its own.")
    return "process"


def _quiet() -> None:
    """Turns down what the libraries say about themselves; our own progress is shown."""
    import datasets
    import torch
    import transformers

    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.getLogger("trl").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="(torch|transformers|trl|accelerate)")


if __name__ == "__main__":
    sys.exit(main())

"""What the demo can be told, and where things lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUNDLE = ROOT / "bundles" / "gridsim-v1"
GENERATOR = BUNDLE / "generator"
WARM_START = ROOT / "sft" / "gridsim-v1" / "train.jsonl"


@dataclass(frozen=True)
class Settings:
    """One run of the demo.

    Attributes:
        sandbox: The sandbox provider that deploys the envs: ``docker`` or ``process``.
        sft_steps: Steps of the warm start, ``sft_batch`` days each. It stops early on purpose: GRPO has the rest.
        grpo_steps: Steps of GRPO, ``rollouts`` episodes each.
        passes: Updates of the model from one step's episodes, which are dear: each runs in a sandbox.
        eval_days: How many of the 200 eval days are played in each evaluation.
        out: The folder for the results.
        seed: For the model's first weights, the order of the days, and what is sampled.
        sft_batch: Days in one step of the warm start.
        rollouts: Episodes in one step of GRPO, and at most as many at once.
        generations: Episodes of one day in a step of GRPO.
        learning_rate: Of GRPO, for the few weights that it trains.
        temperature: How freely the model samples its answers, in training and in evaluations.
        max_completion_length: Tokens of a rollout after its prompt; one that goes well takes about eighty.
    """

    sandbox: str
    out: Path
    sft_steps: int = 80
    grpo_steps: int = 15
    eval_days: int = 80
    seed: int = 0
    sft_batch: int = 32
    passes: int = 8
    rollouts: int = 32
    generations: int = 8
    learning_rate: float = 1e-2
    temperature: float = 1.0
    max_completion_length: int = 112

"""What came of it: a table, a picture of the reward curve, a file with all numbers, and whether it is good enough."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agent_env_core.evaluate.statistics import mean_of
from examples.train_gridsim import gridsim

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from examples.train_gridsim.evaluate import Rewards

UNTRAINED, SFT, GRPO, SHUFFLED = "untrained", "after SFT", "after GRPO", "after GRPO, prices shuffled"
CONSTANT = "best constant"

LEARNT = ((SFT, UNTRAINED), (GRPO, SFT), (GRPO, SHUFFLED))
"""What is set against what: the first is to be the better one, by more than chance makes."""
COMPARED = (*LEARNT, (GRPO, CONSTANT))
"""Those that are shown: when a model passes a good rule clearly depends on how long it is trained."""


@dataclass
class Results:
    """The numbers of a run.

    Attributes:
        sandbox: The provider that deployed the envs.
        seed: The run's.
        rewards: Name to the rewards by eval day, in the table's order; None where an episode ended unscored.
        steps: What GRPO logged, one entry a step.
        unscored: Episodes that ended without a score, in training and in evaluations.
        seconds: Stage to wall time.
    """

    sandbox: str
    seed: int
    rewards: dict[str, Rewards] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    unscored: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def lines(self) -> dict[str, Any]:
        """Name to summary (reward, beats_idle, at_optimum) of the days that were scored."""
        summary = gridsim.baselines().summary
        return {name: summary([day for day in days.values() if day is not None]) for name, days in self.rewards.items()}

    def gains(self) -> list[Gain]:
        """Each pair of `COMPARED`, day by day."""
        return [Gain.of(better, than, self.rewards[better], self.rewards[than]) for better, than in COMPARED]

    def problems(self) -> list[str]:
        """What the demo promises and this run didn't keep; empty when all is well."""
        unclear = [gain for gain in self.gains() if (gain.better, gain.than) in LEARNT and not gain.clear]
        found = [f"{gain.better} isn't clearly better than {gain.than}" for gain in unclear]
        return found + ([f"{self.unscored} episodes ended unscored"] if self.unscored else [])


@dataclass(frozen=True)
class Gain:
    """How much better one model is than another on the same days.

    A day's difference is free of how hard the day is, so the interval is narrower than those of the two means.

    Attributes:
        better: What is to be better.
        than: What it is compared with.
        mean: The mean of the days' differences.
        low: The lower end of its 95% interval; None where nothing can be said.
        high: Its upper end.
        days: How many days that is.
    """

    better: str
    than: str
    mean: float
    low: float | None
    high: float | None
    days: int

    @classmethod
    def of(cls, better: str, than: str, ours: Rewards, theirs: Rewards) -> Gain:
        """The gain over the days that both were scored on."""
        pairs = {str(day): (reward, theirs.get(day)) for day, reward in ours.items()}
        found = mean_of({day: [a - b] for day, (a, b) in pairs.items() if a is not None and b is not None})
        if found is None:
            return cls(better, than, 0.0, None, None, 0)
        return cls(better, than, found.mean, found.low, found.high, found.tasks)

    @property
    def clear(self) -> bool:
        """Whether chance alone hardly makes such a gain: the interval lies above zero."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        ends = "no interval" if self.low is None else f"95% interval {self.low:+.3f} to {self.high:+.3f}"
        return f"{self.mean:+.3f} ({ends}, n = {self.days})"


def show(results: Results, console: Console) -> None:
    """Prints the table, what was learnt, and where the time went."""
    from rich.table import Table

    table = Table(title=f"GridSim on eval days the model never saw, played with {results.sandbox}")
    table.add_column("")
    for heading in ("eval days", "eval reward", "beats idle", "at the optimum"):
        table.add_column(heading, justify="right")
    for name, line in results.lines().items():
        style = "bold" if name == GRPO else None
        numbers = (f"{line.reward:.3f}", f"{line.beats_idle:.0%}", f"{line.at_optimum:.0%}")
        table.add_row(name, str(len(results.rewards[name])), *numbers, style=style)
    console.print()
    console.print(table)
    console.print("Compared day by day, on the same days:")
    for gain in results.gains():
        verdict = "a clear gain" if gain.clear else "within the noise"
        console.print(f"  {gain.better} over {gain.than}: {gain}, {verdict}", soft_wrap=True, highlight=False)
    console.print(
        ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in results.seconds.items())
        + f"; {sum(results.seconds.values()) / 60:.1f} minutes in all."
    )


def save(results: Results, folder: Path) -> None:
    """Writes ``results.json`` and ``reward_curve.png`` into ``folder``."""
    document = asdict(results) | {
        "lines": {name: asdict(line) for name, line in results.lines().items()},
        "gains": [asdict(gain) for gain in results.gains()],
    }
    (folder / "results.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    _draw(results, folder / "reward_curve.png")


def _draw(results: Results, path: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps = [entry["step"] for entry in results.steps]
    rewards = [entry["reward"] for entry in results.steps]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, rewards, color="#9ecae1", marker="o", markersize=3, label="each step's rollouts (train days)")
    axes.plot(steps, _smooth(rewards), color="#08519c", linewidth=2, label="mean of five steps")
    lines = results.lines()
    for name, style in ((CONSTANT, ":"), ("greedy", "--"), (SFT, "-."), (GRPO, "-")):
        level = lines[name].reward
        axes.axhline(level, color="#666666", linestyle=style, linewidth=1, label=f"{name}, eval days: {level:.2f}")
    axes.set(xlabel="GRPO step", ylabel="reward", ylim=(0, 1), title="GridSim: reward while GRPO trains")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small", ncols=2, loc="lower right")
    figure.savefig(path, dpi=120)


def _smooth(values: list[float], width: int = 5) -> list[float]:
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]

"""What came of it: a table, a picture of the reward curve, a file with all numbers, and whether it is good enough."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

UNTRAINED, SFT, GRPO, SHUFFLED = "untrained", "after SFT", "after GRPO", "after GRPO, prices shuffled"


@dataclass
class Results:
    """The numbers of a run.

    Attributes:
        sandbox: The provider that deployed the envs.
        days: How many eval days each line of the table is about.
        lines: Name to summary (reward, beats_idle, at_optimum), in the table's order.
        steps: What GRPO logged, one entry a step.
        unscored: Episodes that ended without a score, in training and in evaluations.
        seconds: Stage to wall time.
    """

    sandbox: str
    days: int
    lines: dict[str, Any] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    unscored: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """What the demo promises and this run didn't keep; empty when all is well."""
        reward = {name: line.reward for name, line in self.lines.items()}
        checks = [
            (reward[GRPO] > reward[UNTRAINED], "the trained model isn't better than the untrained one"),
            (reward[GRPO] > reward["best constant"], "the trained model isn't better than the best constant schedule"),
            (reward[SHUFFLED] < reward[GRPO], "shuffled prices don't lower the trained model's reward"),
            (not self.unscored, f"{self.unscored} episodes ended unscored"),
        ]
        return [text for kept, text in checks if not kept]


def show(results: Results, console: Console) -> None:
    """Prints the table, and where the time went."""
    from rich.table import Table

    table = Table(title=f"GridSim, {results.days} eval days the model never saw, played with {results.sandbox}")
    table.add_column("")
    for heading in ("eval reward", "beats idle", "at the optimum"):
        table.add_column(heading, justify="right")
    for name, line in results.lines.items():
        style = "bold" if name == GRPO else None
        table.add_row(name, f"{line.reward:.3f}", f"{line.beats_idle:.0%}", f"{line.at_optimum:.0%}", style=style)
    console.print()
    console.print(table)
    reward = {name: line.reward for name, line in results.lines.items()}
    console.print(
        f"SFT gained {reward[SFT] - reward[UNTRAINED]:+.3f}, GRPO {reward[GRPO] - reward[SFT]:+.3f}. "
        + ", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in results.seconds.items())
        + f"; {sum(results.seconds.values()) / 60:.1f} minutes in all."
    )


def save(results: Results, folder: Path) -> None:
    """Writes ``results.json`` and ``reward_curve.png`` into ``folder``."""
    document = asdict(results) | {"lines": {name: asdict(line) for name, line in results.lines.items()}}
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
    for name, style in (("best constant", ":"), ("greedy", "--"), (SFT, "-."), (GRPO, "-")):
        if name in results.lines:
            level = results.lines[name].reward
            axes.axhline(level, color="#666666", linestyle=style, linewidth=1, label=f"{name}, eval days: {level:.2f}")
    axes.set(xlabel="GRPO step", ylabel="reward", ylim=(0, 1), title="GridSim: reward while GRPO trains")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small", ncols=2, loc="lower right")
    figure.savefig(path, dpi=120)


def _smooth(values: list[float], width: int = 5) -> list[float]:
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]

"""What the demo makes of its rewards: gains are compared day by day, and a gain within the noise is told."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import pytest
from rich.console import Console

from examples.train_gridsim import report

DAYS = 40
HARD = NormalDist(0.4, 0.1).samples(DAYS, seed=3)


def results(gain: float, unscored: int = 0) -> report.Results:
    """A run in which GRPO gains ``gain`` on each day, give or take what differs from day to day."""
    noise = NormalDist(0, 0.05).samples(DAYS, seed=4)
    trained = [day + gain + extra for day, extra in zip(HARD, noise, strict=True)]
    rewards: dict[str, Sequence[float | None]] = {
        report.UNTRAINED: [0.0] * DAYS, report.SFT: [*HARD], report.GRPO: [*[None] * unscored, *trained[unscored:]],
        report.SHUFFLED: [0.1] * 10, report.CONSTANT: [0.2] * DAYS, "greedy": [0.7] * DAYS,
    }  # fmt: skip
    by_day = {name: dict(enumerate(days)) for name, days in rewards.items()}
    return report.Results("process", 0, by_day, [{"step": 1, "reward": 0.4}], unscored)


def gain_of_grpo(made: report.Results) -> report.Gain:
    return next(gain for gain in made.gains() if (gain.better, gain.than) == (report.GRPO, report.SFT))


def test_the_days_differ_by_more_than_the_gain_and_it_is_clear_all_the_same() -> None:
    made = results(0.05)
    gain = gain_of_grpo(made)
    assert gain.mean == pytest.approx(0.05, abs=0.02)
    assert gain.low is not None
    assert gain.high is not None
    assert 0 < gain.low < gain.mean < gain.high < 0.1
    assert gain.clear
    assert made.problems() == []


@pytest.mark.parametrize("gain", [0.0, -0.1])
def test_a_gain_within_the_noise_is_a_problem(gain: float) -> None:
    assert "after GRPO isn't clearly better than after SFT" in results(gain).problems()


def test_a_day_without_a_score_is_in_no_comparison_and_is_told() -> None:
    made = results(0.2, unscored=3)
    assert gain_of_grpo(made).mean == pytest.approx(0.2, abs=0.03)
    assert made.problems() == ["3 episodes ended unscored"]


def test_a_single_day_says_nothing() -> None:
    gain = report.Gain.of("one", "other", {7: 0.9, 8: 0.5}, {7: 0.1})
    assert (str(gain), gain.clear) == ("+0.800 (no interval, n = 1)", False)


def test_what_is_printed_and_kept(tmp_path: Path) -> None:
    made, shown = results(0.2), io.StringIO()
    report.show(made, Console(width=120, file=shown))
    assert f"after GRPO over after SFT: {gain_of_grpo(made)}, a clear gain" in shown.getvalue()
    report.save(made, tmp_path)
    kept = json.loads((tmp_path / "results.json").read_text("utf-8"))
    assert len(kept["rewards"]["after GRPO"]) == DAYS
    assert kept["gains"][1]["mean"] == gain_of_grpo(made).mean
    assert kept["lines"]["untrained"]["reward"] == 0

"""What can be had without a model: idling, the greedy rule, the best fixed schedule, and the optimum.

All are graded by the env's own :func:`battery.grade`. Run as a script, it prints them for the generated bundle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paths import BUNDLE, battery

BATTERY = battery.BATTERY
Prices = Sequence[float]
Schedule = tuple[int, ...]


@dataclass(frozen=True)
class Summary:
    """How schedules did on some days.

    Attributes:
        reward: Mean reward.
        beats_idle: Share of the days that earned more than idling.
        at_optimum: Share of the days on which no schedule earns more.
    """

    reward: float
    beats_idle: float
    at_optimum: float


def summary(rewards: Sequence[float]) -> Summary:
    """Sums up the rewards of some days; at least one.

    A reward of 1 means the optimum: the env gives it to nothing else.
    """
    if not rewards:
        raise ValueError("no rewards to sum up")
    count = len(rewards)
    return Summary(
        reward=sum(rewards) / count,
        beats_idle=sum(reward > battery.IDLE_REWARD for reward in rewards) / count,
        at_optimum=sum(reward == 1.0 for reward in rewards) / count,
    )


def baselines(train: Iterable[Prices]) -> dict[str, Callable[[Prices], Schedule]]:
    """The rules by name, each a function from a day's prices to a schedule; the fixed one is fitted on ``train``."""
    constant = best_constant(train)
    return {
        "idle": lambda prices: (0,) * len(prices),
        "best constant": lambda prices: constant,
        "greedy": lambda prices: tuple(battery.greedy(BATTERY, battery.to_cents(prices))),
        "optimum": lambda prices: tuple(battery.optimum(BATTERY, battery.to_cents(prices))[0]),
    }


def rewards(rule: Callable[[Prices], Schedule], days: Iterable[Prices]) -> list[float]:
    """The reward of ``rule`` on each of ``days``."""
    return [battery.grade(BATTERY, battery.to_cents(day), rule(day)).reward for day in days]


def best_constant(train: Iterable[Prices]) -> Schedule:
    """The one schedule that earns most over all of ``train``, as far as a thorough search finds it.

    But for the rule that a loss earns no less than 0, the mean reward is linear in the prices, so the optimum on the
    mean of the days (each divided by its best profit) is the exact answer. From there the search takes the best change
    of up to two hours, again and again.
    """
    days = [(cents, battery.optimum(BATTERY, cents)[1]) for cents in map(battery.to_cents, train)]
    days = [(cents, best) for cents, best in days if best > 0]
    shape = [sum(cents[hour] / best for cents, best in days) for hour in range(battery.HOURS)]
    scale = 1e9 / max(abs(value) for value in shape)
    current, _ = battery.optimum(BATTERY, [round(value * scale) for value in shape])
    score = _mean_reward(current, days)
    while True:
        better = max((_mean_reward(other, days), other) for other in _neighbours(current))
        if better[0] <= score:
            return tuple(current)
        score, current = better


def _mean_reward(schedule: Sequence[int], days: Sequence[tuple[Sequence[int], int]]) -> float:
    moves = [(hour, BATTERY.gain(action, 1)) for hour, action in enumerate(schedule) if action]
    units = ((sum(gain * cents[hour] for hour, gain in moves), best) for cents, best in days)
    return sum(battery.reward_of(earned, best) for earned, best in units) / len(days)


def _neighbours(schedule: Sequence[int]) -> Iterator[Schedule]:
    """Feasible schedules that differ from ``schedule`` in one or two hours."""
    hours, steps = range(len(schedule)), range(-BATTERY.max_step, BATTERY.max_step + 1)
    no_prices = (0,) * len(schedule)
    for one in hours:
        for other in hours[one:]:
            for change in ((a, b) for a in steps for b in steps if other > one or a == b):
                changed = list(schedule)
                changed[one], changed[other] = change
                if battery.play(BATTERY, no_prices, changed).feasible:
                    yield tuple(changed)


def split_days(bundle: Path = BUNDLE) -> Mapping[str, list[Prices]]:
    """The prices of a generated bundle's train and eval days."""
    import tomllib

    packs: dict[str, list[float]] = {}
    for pack in (bundle / "envs" / "gridsim" / "prices").glob("*.json"):
        packs.update(json.loads(pack.read_text("utf-8")))
    days = {}
    for split in ("train", "eval"):
        names = tomllib.loads((bundle / "evals" / f"{split}.toml").read_text("utf-8"))["tasks"]
        days[split] = [packs[name.removeprefix("dam-v1-")[:10]] for name in names]
    return days


def main() -> None:
    """Prints the baselines of the generated bundle."""
    days = split_days()
    print(f"{'':<14} eval reward   beats idle   at the optimum")
    for name, rule in baselines(days["train"]).items():
        found = summary(rewards(rule, days["eval"]))
        print(f"{name:<14} {found.reward:11.3f} {found.beats_idle:12.0%} {found.at_optimum:16.0%}")


if __name__ == "__main__":
    main()

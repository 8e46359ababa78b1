"""What episodes come to: a mean, how sure it is, pass@k.

Episodes that failed or were cancelled are in none of these numbers, not even where they scored: they are counted beside
them. Formulas, each with its source:

* **Mean.** The mean of the tasks' means, so that a task of which some episodes failed weighs no less than the others.
* **Interval.** Episodes of one task are alike, so tasks, not episodes, are what was sampled: the interval is
  ``mean ± t · s / √n`` over the *n* tasks' means, *s* their standard deviation and *t* the quantile of Student's
  distribution with *n* - 1 degrees of freedom; it is cut to 0 and 1 where no value lies beyond. That is the standard
  error clustered by task of Miller, "Adding Error Bars to Evals" (arXiv:2411.00640), for clusters of equal size. Of a
  single task it is taken over its episodes.
* **pass@k.** The chance that of *k* episodes of a task at least one passes, without bias from *n* of which *c* passed:
  ``1 - C(n-c, k) / C(n, k)``; Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv:2107.03374,
  equation 1). It is the mean over the tasks with at least *k* scored episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEVEL = 0.95
"""Of the interval."""


@dataclass(frozen=True)
class Mean:
    """A mean and its interval.

    Attributes:
        mean: The mean of the tasks' means.
        low: The interval's lower end; None where nothing can be said: one value alone, or all of them equal.
        high: Its upper end.
        episodes: How many episodes are in it.
        tasks: How many tasks.
    """

    mean: float
    low: float | None
    high: float | None
    episodes: int
    tasks: int


def mean_of(values: Mapping[str, Sequence[float]]) -> Mean | None:
    """The mean of values by task; None without any."""
    groups = [list(group) for group in values.values() if group]
    if not groups:
        return None
    means = [math.fsum(group) / len(group) for group in groups]
    mean = math.fsum(means) / len(means)
    sample = means if len(means) > 1 else groups[0]
    bounded = all(0 <= value <= 1 for group in groups for value in group)
    low, high = _interval(sample, mean, bounded=bounded)
    return Mean(mean, low, high, sum(map(len, groups)), len(groups))


def _interval(sample: Sequence[float], mean: float, *, bounded: bool) -> tuple[float | None, float | None]:
    n = len(sample)
    spread = math.fsum((value - mean) ** 2 for value in sample)
    if n < 2 or spread <= 1e-18 * max(1.0, mean * mean):
        return None, None
    half = student_t(0.5 + LEVEL / 2, n - 1) * math.sqrt(spread / (n - 1) / n)
    low, high = mean - half, mean + half
    return (max(0.0, low), min(1.0, high)) if bounded else (low, high)


def pass_at(k: int, passed: Mapping[str, Sequence[bool]]) -> tuple[float, int] | None:
    """pass@k, and over how many tasks; None where no task has ``k`` episodes.

    Args:
        k: How many tries.
        passed: By task, whether each episode passed.
    """
    found = [
        1 - math.comb(len(tries) - sum(tries), k) / math.comb(len(tries), k)
        for tries in passed.values()
        if len(tries) >= k
    ]
    return (math.fsum(found) / len(found), len(found)) if found else None


def student_t(p: float, degrees: int) -> float:
    """The quantile of Student's distribution: the ``x`` below which it lies with probability ``p`` > 0.5.

    By bisection of the distribution function, which is a finite sum for a whole number of degrees of freedom
    (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    low, high = 0.0, 1.0
    while _within(high, degrees) < 2 * p - 1:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 2 * p - 1 else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """The probability that a variable of Student's distribution lies between -t and t."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine = math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for j in range(2 + odd, degrees - 1, 2):
        term *= cosine * cosine * (j - 1) / j
        total += term
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total

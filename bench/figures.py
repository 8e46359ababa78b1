"""What was measured: durations, summed up, and how the product's compare with the floor's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.phases import Phases


@dataclass(frozen=True)
class Times:
    """Durations in seconds, summed up."""

    n: int
    p50: float
    p95: float
    p99: float
    max: float
    sum: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        """Sums up at least one duration."""
        ranked = sorted(seconds)
        p50, p95, p99 = (_percentile(ranked, share) for share in (0.50, 0.95, 0.99))
        return cls(len(ranked), p50, p95, p99, ranked[-1], sum(ranked))


def _percentile(ranked: Sequence[float], share: float) -> float:
    """Between the two nearest ranks."""
    place = share * (len(ranked) - 1)
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)


@dataclass(frozen=True)
class Side:
    """One side of a comparison of whole episodes.

    Attributes:
        first_answer: From the reset to the first tool's answer; the first episode of each session in a round alone,
            before which nothing else runs.
        per_minute: Episodes a minute, until nothing of them was left.
    """

    first_answer: Times
    per_minute: float


@dataclass(frozen=True)
class Episodes:
    """Whole episodes at one number of sessions."""

    sessions: int
    product: Side
    floor: Side
    server_cpu_per_episode: float

    @property
    def ratio(self) -> float:
        """Median latency of the product over the floor's."""
        return self.product.first_answer.p50 / self.floor.first_answer.p50

    @property
    def rate_ratio(self) -> float:
        """Episodes a minute of the product over the floor's."""
        return self.product.per_minute / self.floor.per_minute


@dataclass(frozen=True)
class Warm:
    """From the reset to the first tool's answer, with deployments made ahead and without, at one number of sessions."""

    sessions: int
    ahead: Times
    cold: Times

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.ahead.p50 / self.cold.p50


@dataclass(frozen=True)
class Calls:
    """Tool calls on one env: through the product, and with an MCP session of our own."""

    product: Times
    direct: Times
    server_cpu_per_call: float

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return self.product.p50 / self.direct.p50

    @property
    def added(self) -> float:
        """Seconds between the medians."""
        return self.product.p50 - self.direct.p50


@dataclass(frozen=True)
class Held:
    """How long a trainer's one thread was held by a batch.

    Attributes:
        resets: The ``reset`` calls, one after another.
        tools: The first tool calls, one after another: what is left of the deploys, and the calls.
        answered: From the first reset until the last of the first tool calls, also one after another, was answered.
        rewards: The ``get_reward`` calls, one after another.
    """

    resets: Times
    tools: Times
    answered: float
    rewards: Times

    @property
    def seconds(self) -> float:
        """All of it: how long the trainer could do nothing else."""
        return self.resets.sum + self.tools.sum + self.rewards.sum

    @property
    def resets_share(self) -> float:
        """The resets' share of the time until all first answers."""
        return self.resets.sum / self.answered


@dataclass(frozen=True)
class Batch:
    """A batch as ``GRPOTrainer`` plays it.

    Attributes:
        size: Rollouts in it.
        first: The first batch, whose resets open the sessions too.
        later: Those after it: the one in the middle, by the time until all first answers.
        waiting: As it would be if each reset waited for its deploy, and each reward for its verifier.
        floor_answered: How long the same number of sandboxes took by hand, started all at once, to answer.
    """

    size: int
    first: Held
    later: Held
    waiting: Held
    floor_answered: float

    @property
    def ratio(self) -> float:
        """Time until all first answers, over the floor's."""
        return self.later.answered / self.floor_answered


@dataclass(frozen=True)
class Measured:
    """All that was measured with one bundle on one provider."""

    bundle: str
    provider: str
    local_start: float
    first_factory: float
    episodes: tuple[Episodes, ...]
    phases: tuple[Phases, ...]
    warm: tuple[Warm, ...]
    calls: Calls
    batches: tuple[Batch, ...]

"""What was measured: durations, summed up, and how the product's compare with the floor's."""

from __future__ import annotations

import statistics
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
    """Whole episodes at one number of sessions.

    Attributes:
        sessions: How many were played side by side.
        product: Ours.
        floor: By hand.
        ratios: Round by round, the product's median latency over the floor's.
        failed: Episodes of the product that came to no score; no figure is of them.
        server_cpu_per_episode: Seconds.
    """

    sessions: int
    product: Side
    floor: Side
    ratios: tuple[float, ...]
    failed: int
    server_cpu_per_episode: float

    @property
    def ratio(self) -> float:
        """The rounds' median."""
        return statistics.median(self.ratios)

    @property
    def rate_ratio(self) -> float:
        """Episodes a minute of the product over the floor's."""
        return self.product.per_minute / self.floor.per_minute


@dataclass(frozen=True)
class Warm:
    """From the reset to the first tool's answer, with deployments made ahead and without, at one number of sessions.

    Attributes:
        sessions: How many began at once.
        ahead: With.
        cold: Without.
        ratios: Round by round, of the medians.
    """

    sessions: int
    ahead: Times
    cold: Times
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The rounds' median."""
        return statistics.median(self.ratios)


@dataclass(frozen=True)
class Calls:
    """Tool calls on one env: through the product, and with an MCP session of our own.

    Attributes:
        product: Through trainer, server and MCP.
        direct: By hand.
        server_cpu: CPU seconds of the server for a call; one figure for each hundred of them.
        mcp_cpu: CPU seconds of the official MCP client for a call, in its process; also by the hundred, in turn.
    """

    product: Times
    direct: Times
    server_cpu: Times
    mcp_cpu: Times

    @property
    def server_cpu_beyond(self) -> float:
        """Seconds for a call that the server needs beyond an MCP client, which it has to be: over all calls."""
        return self.server_cpu.sum / self.server_cpu.n - self.mcp_cpu.sum / self.mcp_cpu.n

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
        answered: Until all first answers of the later batches.
        floor_answered: How long the same number of sandboxes took by hand, started all at once, to answer.
        ratios: Round by round, of these two.
    """

    size: int
    first: Held
    later: Held
    waiting: Held
    answered: Times
    floor_answered: Times
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The rounds' median."""
        return statistics.median(self.ratios)


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


@dataclass(frozen=True)
class Crowd:
    """Many sessions at once on the provider that lives in memory: what the server itself bears.

    Attributes:
        sessions: How many.
        calls: Tool calls of all rounds.
        ratios: Round by round, the 99th percentile of a tool call over the median.
        problems: What went wrong, in words.
    """

    sessions: int
    calls: Times
    ratios: tuple[float, ...]
    problems: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """The rounds' median."""
        return statistics.median(self.ratios)


@dataclass(frozen=True)
class Teardown:
    """Episodes one after another where removing a sandbox takes long, and where it takes no time.

    Attributes:
        removal: Seconds that a removal takes.
        slow: From the reset to the reward, each episode.
        instant: The same where a removal takes no time.
    """

    removal: float
    slow: Times
    instant: Times

    @property
    def share(self) -> float:
        """The share of a removal that a trainer waits for, of the medians."""
        return (self.slow.p50 - self.instant.p50) / self.removal

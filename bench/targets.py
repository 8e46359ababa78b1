"""What was set out to be reached, row by row: what was measured for it, the target, and whether it is met."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.figures import Batch, Calls, Crowd, Episodes, Measured, Teardown, Times, Warm

ROLLOUTS = 32
"""The size of a batch, and the number of sessions, that the targets are set for."""
MANY = 256
"""Sessions in memory that the target is set for."""
HEADINGS = ("what", "on", "n", "p50", "p95", "p99", "ratio", "target", "")
CPU_TARGET = 0.5e-3


@dataclass(frozen=True)
class Row:
    """One line of the table, in words.

    Attributes:
        what: What is compared with what.
        on: Bundle and provider.
        ours: The figures of the product.
        against: Those that they are set against; None where there are none.
        figure: What came out, mostly their ratio.
        target: What it should be; empty where none is set.
        met: Whether it is; None where no target is set.
    """

    what: str
    on: str
    ours: Times
    against: Times | None
    figure: str
    target: str = ""
    met: bool | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """Under :data:`HEADINGS`."""
        verdict = {True: "met", False: "not met", None: ""}[self.met]
        ranks = [_pair(self, name) for name in ("p50", "p95", "p99")]
        return self.what, self.on, _count(self), *ranks, self.figure, self.target, verdict


def rows(measured: Sequence[Measured], crowd: Crowd | None, teardown: Teardown | None) -> Iterator[Row]:
    """All of them that were measured."""
    for one in measured:
        on = f"{one.bundle}, {one.provider}"
        for at in one.episodes:
            yield _cold(on, at)
        for ahead in one.warm:
            yield _warm(on, ahead)
        yield from _calls(on, one.calls)
        for batch in one.batches:
            yield from _batch(on, batch)
    if teardown is not None:
        yield _teardown(teardown)
    if crowd is not None:
        yield _crowd(crowd)


def _cold(on: str, at: Episodes) -> Row:
    limits = {1: 1.25, ROLLOUTS: 1.3}
    what = f"cold reset → first tool answer, {_sessions(at.sessions)} / by hand"
    figure = f"{at.ratio:.2f}x, {at.failed} failed"
    limit = limits.get(at.sessions)
    ours, by_hand = at.product.first_answer, at.floor.first_answer
    if limit is None:
        return Row(what, on, ours, by_hand, figure)
    met = at.ratio <= limit and at.failed == 0
    return Row(what, on, ours, by_hand, figure, f"≤ {limit}x, 0 failed", met)


def _warm(on: str, at: Warm) -> Row:
    what = f"reset → first tool answer, {_sessions(at.sessions)}: deployed ahead / cold"
    return Row(what, on, at.ahead, at.cold, f"{at.ratio:.1%}", "< 5 %", at.ratio < 0.05)


def _calls(on: str, at: Calls) -> Iterator[Row]:
    what = "tool call through session, server and MCP / direct MCP call"
    yield Row(what, on, at.product, at.direct, f"{at.ratio:.2f}x", "≤ 2x", at.ratio <= 2)
    beyond = at.server_cpu_beyond
    what = "CPU of a tool call (n hundreds of them): server / official MCP client"
    figure = f"{1e3 * beyond:+.2f} ms"
    yield Row(what, on, at.server_cpu, at.mcp_cpu, figure, f"< +{1e3 * CPU_TARGET:g} ms", beyond < CPU_TARGET)


def _batch(on: str, at: Batch) -> Iterator[Row]:
    what = f"batch of {at.size}: all first tool answers / all started by hand at once"
    target, met = ("≤ 1.3x", at.ratio <= 1.3) if at.size == ROLLOUTS else ("", None)
    yield Row(what, on, at.answered, at.floor_answered, f"{at.ratio:.2f}x", target, met)
    for which, held in (("first", at.first), ("later", at.later)):
        what = f"{at.size} `reset` calls of a {which} batch, of the time until all first answers"
        target, met = ("< 1 %", held.resets_share < 0.01) if at.size == ROLLOUTS else ("", None)
        yield Row(what, on, held.resets, None, f"{held.resets_share:.2%}", target, met)
    for name, kind in (("reset", "resets"), ("first tool", "tools"), ("get_reward", "rewards")):
        ours, waiting = (getattr(held, kind) for held in (at.later, at.waiting))
        what = f"batch of {at.size}: how long `{name}` holds the trainer / one after another"
        yield Row(what, on, ours, waiting, f"{ours.sum:.2f} s / {waiting.sum:.2f} s in all")
    yield Row(
        f"batch of {at.size}: how long all of it holds the trainer / one after another", on,
        Times.of([at.later.seconds]), Times.of([at.waiting.seconds]), f"{at.later.seconds / at.waiting.seconds:.2f}x",
    )  # fmt: skip


def _teardown(at: Teardown) -> Row:
    what = f"reset → reward where a removal takes {at.removal:g} s / no time"
    share = max(0.0, at.share)
    figure = f"{share:.0%} of a removal waited for"
    return Row(what, "counter, in memory", at.slow, at.instant, figure, "none (< 5 %)", share < 0.05)


def _crowd(at: Crowd) -> Row:
    what = f"tool call of {at.sessions} sessions at once: p99 / p50"
    figure = f"{at.ratio:.1f}x, {len(at.problems)} failed"
    if at.sessions != MANY:
        return Row(what, "counter, in memory", at.calls, None, figure)
    met = at.ratio < 10 and not at.problems
    return Row(what, "counter, in memory", at.calls, None, figure, "< 10x, 0 failed", met)


# -- words


def _sessions(number: int) -> str:
    return "one session" if number == 1 else f"{number} at once"


def _count(row: Row) -> str:
    n = [row.ours.n] + ([row.against.n] if row.against is not None else [])
    return str(n[0]) if len(set(n)) == 1 else " / ".join(map(str, n))


def _pair(row: Row, name: str) -> str:
    both = [getattr(times, name) for times in (row.ours, row.against) if times is not None]
    unit, factor = ("s", 1.0) if max(both) >= 10 else ("ms", 1e3)
    return " / ".join(_number(factor * seconds) for seconds in both) + f" {unit}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"

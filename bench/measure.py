"""The measurements. Product and floor take turns in each, so that a machine that gets busier hurts both alike."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench.figures import Batch, Episodes, Held, Measured, Side, Times, Warm
from bench.phases import phases
from bench.product import Unscored

if TYPE_CHECKING:
    from agent_env_trl.environment import Environment

    from bench.floor import Floor
    from bench.product import Prepared, Product

Say = Callable[[str], None]

MADE_AHEAD = 8
"""The most deployments that are made ahead, here: what a server keeps by default on two cores."""
CHAIN = 2
"""Episodes that each session plays one after another in a round."""


@dataclass
class _Rounds:
    """What the rounds of one side came to."""

    first: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)  # of the rounds
    episodes: int = 0
    failed: int = 0
    seconds: float = 0.0

    def side(self) -> Side:
        return Side(Times.of(self.first), 60 * self.episodes / self.seconds)

    def over(self, other: _Rounds) -> tuple[float, ...]:
        """Round by round, the median latency over the other side's."""
        return tuple(ours / theirs for ours, theirs in zip(self.medians, other.medians, strict=True))


def episodes(product: Product, floor: Floor, sessions: int, rounds: int) -> Episodes:
    """Plays rounds of episodes, product and floor in turn.

    Args:
        product: A server that allows as many sessions.
        floor: The same by hand.
        sessions: How many are played side by side.
        rounds: Of each side.
    """
    environments = product.environments(sessions)
    ours, by_hand = _Rounds(), _Rounds()
    cpu = 0.0
    try:
        for number in range(rounds):
            sides = [True, False] if number % 2 == 0 else [False, True]  # neither always comes after the other
            for is_product in sides:
                if is_product:
                    used = product.cpu_seconds
                    _round(ours, [partial(product.play, environment) for environment in environments],
                           product.wait_until_quiet)  # fmt: skip
                    cpu += product.cpu_seconds - used
                else:
                    _round(by_hand, [lambda: floor.play(sessions).first_answer] * sessions, lambda: None)
    finally:
        product.close_sessions(environments)
        product.wait_until_quiet()
    return Episodes(sessions, ours.side(), by_hand.side(), ours.over(by_hand), ours.failed, cpu / ours.episodes)


def _round(
    into: _Rounds, players: Sequence[Callable[[], float]], settle: Callable[[], None], *, chain: int = CHAIN
) -> None:
    """Each player plays its episodes in a thread of its own; the round ends when nothing is left of them.

    Raises:
        Unscored: No episode of the round was scored.
    """
    start = threading.Barrier(len(players) + 1)

    def work(play: Callable[[], float]) -> list[float | None]:
        start.wait()
        return [_played(play) for _ in range(chain)]

    with ThreadPoolExecutor(len(players)) as threads:
        try:
            working = [threads.submit(work, play) for play in players]
            start.wait()
            began = time.perf_counter()
            chains = [done.result() for done in working]
        except BaseException:
            start.abort()  # or those at the start wait for ever for those that never came
            raise
    settle()
    into.seconds += time.perf_counter() - began
    into.episodes += chain * len(players)
    into.failed += sum(answered is None for played in chains for answered in played)
    first = [played[0] for played in chains if played[0] is not None]
    if not first:
        raise Unscored("no episode of a round was scored; the log above has the reason")
    into.first += first
    into.medians.append(statistics.median(first))


def _played(play: Callable[[], float]) -> float | None:
    """Seconds until the first answer; None where the episode failed, which is counted."""
    try:
        return play()
    except Unscored:
        return None


def warm(prepared: Prepared, cold: Product, sessions: int, rounds: int) -> Warm:
    """Plays episodes that find a deployment made ahead, and such that find none, in turn.

    Args:
        prepared: What is served.
        cold: A server that makes none ahead.
        sessions: How many episodes begin at once; as many deployments are made ahead.
        rounds: Of each side.
    """
    from bench.product import Product

    ahead, none = _Rounds(), _Rounds()
    with Product(prepared, sessions, warm=sessions) as product:
        # open from round to round, as a trainer's sessions are
        finding, waiting = product.environments(sessions), cold.environments(sessions)
        try:
            for number in range(rounds + 1):
                counted = number > 0  # the first opens all there is
                product.wait_until_warm(sessions)
                players = [partial(product.play, environment) for environment in finding]
                _round(ahead if counted else _Rounds(), players, lambda: None, chain=1)
                players = [partial(cold.play, environment) for environment in waiting]
                _round(none if counted else _Rounds(), players, cold.wait_until_quiet, chain=1)
        finally:
            product.close_sessions(finding)
            cold.close_sessions(waiting)
    return Warm(sessions, Times.of(ahead.first), Times.of(none.first), ahead.over(none))


def batch(product: Product, floor: Floor, size: int, rounds: int) -> Batch:
    """Plays batches one rollout after another, as ``GRPOTrainer`` does; by hand all at once; and waiting in each call.

    Args:
        product: A server that allows as many sessions.
        floor: The same by hand.
        size: Rollouts in a batch.
        rounds: Batches after the first, and floors.
    """
    played: list[Held] = []
    by_hand: list[float] = []
    environments = product.environments(size, batch=True)
    try:
        first = _held(product, environments, product.reset)
        for number in range(rounds):
            sides = [True, False] if number % 2 else [False, True]  # neither always comes after the other
            for is_product in sides:
                if is_product:
                    played.append(_held(product, environments, product.reset))
                else:
                    by_hand.append(_all_at_once(floor, size))
    finally:
        product.close_sessions(environments)
    environments = product.environments(size)
    try:
        waiting = _held(product, environments, product.reset_and_wait)  # once: it is long, and no close race
    finally:
        product.close_sessions(environments)
        product.wait_until_quiet()
    later = sorted(played, key=lambda held: held.answered)[(rounds - 1) // 2]
    answered = [held.answered for held in played]
    ratios = tuple(ours / theirs for ours, theirs in zip(answered, by_hand, strict=True))
    return Batch(size, first, later, waiting, Times.of(answered), Times.of(by_hand), ratios)


def _held(product: Product, environments: Sequence[Environment], reset: Callable[[Environment], None]) -> Held:
    began = time.perf_counter()
    resets = [timed(partial(reset, environment)) for environment in environments]
    tools = [timed(partial(product.call, environment)) for environment in environments]
    answered = time.perf_counter() - began
    rewards = [timed(partial(product.score, environment)) for environment in environments]
    product.wait_until_quiet()
    return Held(Times.of(resets), Times.of(tools), answered, Times.of(rewards))


def _all_at_once(floor: Floor, size: int) -> float:
    """Seconds until the last of ``size`` sandboxes, started at once, answered its first call."""
    began = time.perf_counter()

    def work(_: int) -> float:
        waited = time.perf_counter() - began  # for its thread to start
        return waited + floor.play(size).first_answer

    with ThreadPoolExecutor(size) as threads:
        return max(threads.map(work, range(size)))


def imports(count: int) -> Iterator[tuple[str, Times]]:
    """How long it takes to start Python, to import the core, and to show the command line's help."""
    for name, command in {
        "python": ["-c", "pass"],
        "import agent_env_core": ["-c", "import agent_env_core"],
        "agent-env --help": ["-m", "agent_env_core.cli", "--help"],
    }.items():
        yield name, Times.of([timed(partial(_python, command)) for _ in range(count)])


def _python(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def timed(work: Callable[[], object]) -> float:
    """How many seconds ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@dataclass(frozen=True)
class Amounts:
    """How much is measured.

    Attributes:
        sessions: Numbers of sessions side by side.
        rounds: At each of them, by sessions; also batches of each side, by their size.
        calls: Tool calls of each side.
        sizes: Rollouts in a batch: one kind of batch for each.
        imports: Starts of Python of each kind.
        crowd: Sessions at once in memory.
        crowds: How often.
        removals: Episodes in memory whose removal takes long.
    """

    sessions: tuple[int, ...]
    rounds: Callable[[int], int]
    calls: int
    sizes: tuple[int, ...]
    imports: int
    crowd: int
    crowds: int
    removals: int

    @property
    def few(self) -> tuple[int, ...]:
        """The numbers of sessions that all have a deployment made ahead by default; one, where none is so small."""
        return tuple(number for number in self.sessions if number <= MADE_AHEAD) or (1,)


def everything(prepared: Prepared, amounts: Amounts, say: Say) -> Measured:
    """Measures one bundle on one provider."""
    from bench.floor import Floor
    from bench.product import Product
    from bench.tool_calls import calls

    floor = Floor(prepared.provider, prepared.image, prepared.script)
    try:
        with Product(prepared, max(*amounts.sessions, *amounts.sizes)) as product:
            episodes(product, floor, 1, 1)  # warms both sides up; not counted
            found = []
            for sessions in amounts.sessions:
                say(f"{amounts.rounds(sessions)} rounds of {sessions} sessions, and as many by hand")
                found.append(episodes(product, floor, sessions, amounts.rounds(sessions)))
            say("parts of an episode")
            parts = tuple(phases(prepared, floor, n, amounts.rounds(n)) for n in amounts.few)
            ahead = []
            for sessions in amounts.few:
                say(f"{amounts.rounds(sessions)} rounds of {sessions} sessions that find deployments made ahead")
                ahead.append(warm(prepared, product, sessions, amounts.rounds(sessions)))
            say(f"{amounts.calls} tool calls, and as many directly")
            called = calls(product, amounts.calls)
            held = []
            for size in amounts.sizes:
                say(f"batches of {size}, one rollout after another")
                held.append(batch(product, floor, size, amounts.rounds(size)))
            return Measured(
                prepared.bundle.name, prepared.provider, product.start_seconds, product.tools_seconds,
                tuple(found), parts, tuple(ahead), called, tuple(held),
            )  # fmt: skip
    finally:
        floor.close()

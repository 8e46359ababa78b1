"""Runs the episodes of an evaluation, so many at once, and keeps what comes of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from agent_env_core.errors import EpisodeError, episode_error
from agent_env_core.evaluate.plan import Plan, Selected
from agent_env_core.evaluate.player import MAX_ANSWERS, Answers, Player
from agent_env_core.evaluate.record import Row, outcome_of, told
from agent_env_core.evaluate.summary import Episode as Counted
from agent_env_core.evaluate.summary import Summary, summarize
from agent_env_core.models import Usage
from agent_env_core.play.rewards import resolve_reward

if TYPE_CHECKING:
    from agent_env_core.adapters import Combiner
    from agent_env_core.evaluate.results import Results
    from agent_env_core.play.episode import Episode
    from agent_env_core.play.runner import Runner
    from agent_env_core.play.spec import EpisodeSpec

CONCURRENCY = 4
"""Episodes at once, where the user doesn't say."""
KEPT = ("passed", "below_one", "unscored")
"""Outcomes that a resumed evaluation keeps; the other episodes are played again."""


@dataclass
class Running:
    """An episode under way, for whoever shows progress.

    Attributes:
        task: The task's name.
        repeat: Which repeat.
        began: When, on the monotonic clock.
        player: Has the turns so far.
    """

    task: str
    repeat: int
    player: Player
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Kept:
    """A deployment that was left standing: whose it is, the sandbox's id, and the env's address."""

    task: str
    env: str
    sandbox: str
    url: str


class Evaluation:
    """Plays every episode of a plan once.

    Args:
        plan: What is played.
        model: Gives whatever answers the turns of an episode of a task; it may be the same for all.
        results: Where rows go.
        repeat: How often each task is played.
        concurrency: How many episodes at once.
        params: Fields of every request to the model.
        max_answers: Answers that one turn may take.
        end_turn: Whether to offer the tool ``end_turn``, as trainers do.
        reward: The one score to count, as ``serve --reward`` has it; by default the only score, or the mean of all.
        keep: Whether to leave deployments standing until the runner is closed.
        on_end: Told of each row as it is written.

    Attributes:
        running: The episodes under way.
        episodes: What is known of those that ended, earlier parts of a resumed run included.
        planned: How many there are.
        kept: What was left standing.
    """

    def __init__(
        self,
        plan: Plan,
        model: Callable[[EpisodeSpec], Answers],
        results: Results,
        *,
        repeat: int = 1,
        concurrency: int = CONCURRENCY,
        params: Mapping[str, Any] | None = None,
        max_answers: int = MAX_ANSWERS,
        end_turn: bool = False,
        reward: str | None = None,
        keep: bool = False,
        on_end: Callable[[Row], None] = lambda row: None,
    ) -> None:
        self.running: list[Running] = []
        self.planned = len(plan.tasks) * repeat
        self.kept: list[Kept] = []
        self._plan = plan
        self._model = model
        self._results = results
        self._repeat = repeat
        self._slots = asyncio.Semaphore(concurrency)
        self._params = dict(params or {})
        self._max_answers = max_answers
        self._end_turn = end_turn
        self._rewards = {task_id: combiner(reward, spec) for task_id, spec in plan.specs.items()}
        self._keep = keep
        self._on_end = on_end
        self.episodes: dict[tuple[str, int], Counted] = {
            (task.id, at): Counted.read(row)
            for task in plan.tasks
            for at in range(repeat)
            if (row := results.rows.get((task.id, at))) and row["outcome"] in KEPT and row.get("digest") == task.digest
        }

    @property
    def left(self) -> list[tuple[Selected, int]]:
        """What isn't played yet: tasks, and which repeat of each; every task comes once before any comes again."""
        every = [(task, at) for at in range(self._repeat) for task in self._plan.tasks]
        return [(task, at) for task, at in every if (task.id, at) not in self.episodes]

    async def run(self, runner: Runner) -> None:
        """Plays what isn't played yet; returns when every episode has ended and, unless kept, is torn down.

        Cancelling this ends the episodes under way, each with a row that says so, and waits until nothing is left.

        Args:
            runner: Started, with the plan's specs.
        """
        async with asyncio.TaskGroup() as group:
            for task, at in self.left:
                await self._slots.acquire()
                group.create_task(self._one(task, at, runner)).add_done_callback(lambda _: self._slots.release())

    def summary(self, seconds: float) -> Summary:
        """What the episodes so far come to."""
        return summarize(self.episodes, planned=self.planned, repeat=self._repeat, seconds=seconds)

    # -- one episode

    async def _one(self, task: Selected, at: int, runner: Runner) -> None:
        row = Row(task.id, task.name, task.digest, at, "failed", started_at=datetime.now(UTC).isoformat())
        reason = self._plan.refused.get(task.id) or runner.left_out.get(task.id)
        if reason is not None:
            row.error = told(EpisodeError("prepare", reason))
            self._ended(row)
            return
        spec = self._plan.specs[task.id]
        try:
            model = self._model(spec)
        except Exception as exc:
            row.error = told(episode_error(exc, "turn"))
            self._ended(row)
            return
        running = Running(task.name, at, Player(spec, model, self._params, self._max_answers, self._end_turn))
        self.running.append(running)
        try:
            await self._play(row, running, runner)
        finally:
            self.running.remove(running)

    async def _play(self, row: Row, running: Running, runner: Runner) -> None:
        episode = await running.player.spec.start(runner)
        if self._keep:
            episode.keep()
        error: EpisodeError | None = None
        try:
            await play_episode(episode, running.player)
            row.scores = await episode.result()
        except EpisodeError as exc:
            error = exc
        except asyncio.CancelledError:
            row.outcome = "cancelled"
            self._fill(row, episode, running)
            self._ended(row)
            await episode.abandon("the evaluation was stopped")
            raise
        self._settle(row, episode, error)
        self._fill(row, episode, running)
        self._ended(row)
        if self._keep:
            self.kept += [
                Kept(row.task, env.env.name, env.sandbox.id, env.mcp_url) for env in episode.run.envs.values()
            ]
        else:
            await episode.wait_finished()

    def _settle(self, row: Row, episode: Episode, error: EpisodeError | None) -> None:
        """How it ended, and the reward."""
        tolerated = [f for f in episode.run.metadata.get("failed_steps", []) if not f.get("is_retried")]
        row.outcome = outcome_of(row.scores, failed=error is not None or bool(tolerated))
        if error is None and row.scores:
            try:
                row.reward = self._rewards[row.task_id](row.scores)
            except EpisodeError as exc:
                error, row.outcome = exc, "failed"
        if error is not None:
            row.error = told(error)
        elif tolerated:
            first = tolerated[0]
            reason = first["error"].removeprefix(f"{first['phase']}: ")
            row.error = told(EpisodeError(first["phase"], f"step {first['step_id']!r} failed: {reason}"))

    def _fill(self, row: Row, episode: Episode, running: Running) -> None:
        """What there is to tell, however it ended."""
        turns = running.player.turns
        row.episode_id = episode.id
        row.seconds = round(time.monotonic() - running.began, 3)
        row.timings = {name: round(max(seconds, 0.0), 4) for name, seconds in episode.timings.items()}
        row.turns = turns
        row.usage = sum((turn.usage for turn in turns), Usage())
        row.answers = sum(turn.answers for turn in turns)
        row.tool_calls = sum(len(turn.calls) for turn in turns)
        row.verifications = {key: vars(found) for key, found in episode.run.verifications.items()}
        row.failed_steps = list(episode.run.metadata.get("failed_steps", []))

    def _ended(self, row: Row) -> None:
        self._results.add(row)
        self.episodes[row.key] = Counted.of(row)
        self._on_end(row)


async def play_episode(episode: Episode, player: Player) -> None:
    """Has ``player`` play every turn of an episode, those that are open side by side included.

    Raises:
        EpisodeError: The run failed.
    """
    turns: list[asyncio.Task[None]] = []
    try:
        while (turn := await episode.next_turn()) is not None:
            turns.append(asyncio.create_task(player.play(turn), name=f"turn {turn.step_id}"))
    except BaseException:
        for task in turns:
            task.cancel()
        raise
    finally:
        await asyncio.gather(*turns, return_exceptions=True)


def combiner(reward: str | None, spec: EpisodeSpec) -> Combiner:
    """The function from a task's scores to the number that counts.

    Raises:
        ValueError: ``reward`` doesn't fit the task.
    """
    if reward is None and len(spec.score_ids) > 1:
        reward = "mean"
    return resolve_reward(reward, spec.score_ids)

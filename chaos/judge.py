"""What must hold after every run, whatever went wrong in it: the invariants, by the names of their reports."""

from __future__ import annotations

import math
from collections.abc import Iterator

from chaos.play import Aftermath, Limits, Outcome
from chaos.schedule import SURE, Schedule

SLACK = 30.0
"""Seconds past its own limits that a rollout may take on a machine that is busy with hundreds of others."""


def violations(schedule: Schedule, aftermath: Aftermath, limits: Limits) -> list[str]:
    """Every broken invariant, in words; empty when all hold.

    Nothing is left of a run (I1). A rollout is scored right, or unscored with its phase and reason, and what goes wrong
    in one disturbs no other (I2). None takes longer than its limits (I3). The limits of the host hold (I4). Scores are
    finite (I5). Every rollout comes to its end, so a training step would (I6).
    """
    found = [f"I1: the sandbox {box} is left" for box in aftermath.left]
    if aftermath.live:
        found.append(f"I1: the host counts {aftermath.live} sandboxes, and all should have been ended")
    found += [f"I1: the task {name} still runs" for name in aftermath.tasks]
    if aftermath.descriptors > 16:
        found.append(f"I1: {aftermath.descriptors} file descriptors more than before")
    if len(aftermath.outcomes) != len(schedule.plans):
        found.append(f"I6: {len(aftermath.outcomes)} outcomes of {len(schedule.plans)} rollouts")
    for name, most, limit in (
        ("starting", aftermath.most_starting, limits.starting),
        ("running", aftermath.most_running, limits.running),
    ):
        if most > limit:
            found.append(f"I4: {most} sandboxes were {name} at once, and {limit} may be")
    for outcome in aftermath.outcomes:
        found += [f"{line} (rollout {outcome.plan.number}: {_faults(outcome)})" for line in _of_one(outcome, schedule)]
    budget = 3 * limits.ready + 10 * limits.tool + SLACK
    slow = [outcome for outcome in aftermath.outcomes if outcome.seconds > budget]
    found += [f"I3: rollout {each.plan.number} took {each.seconds:.0f} s of {budget:.0f}" for each in slow]
    return found


def _faults(outcome: Outcome) -> str:
    return ", ".join(map(str, outcome.plan.faults)) or "no faults"


def _of_one(outcome: Outcome, schedule: Schedule) -> Iterator[str]:
    plan, scores, error = outcome.plan, outcome.scores, outcome.error
    if not outcome.finished:
        yield "I6: its teardown didn't end"
    if outcome.crash:
        yield f"I2: its player was given what is no EpisodeError: {outcome.crash}"
    elif (scores is None) == (error is None):
        yield f"I2: it must have either scores or an error, and has {scores} and {error}"
    if scores is not None:
        if set(scores) != {"grade"} or not all(map(math.isfinite, scores.values())):
            yield f"I5: its scores are {scores}"
        elif not math.isclose(scores["grade"], plan.score):
            yield f"I2: it was scored {scores['grade']}, and {plan.score} is right"
        if plan.has(*SURE):
            yield f"I2: it was scored {scores}, and nothing can be known of it"
    if error is not None:
        if not error.reason.strip() or not error.phase:
            yield f"I2: its error says nothing: {error!r}"
        if not plan.faults and schedule.closes is None:
            yield f"I2: nothing went wrong in it, and it wasn't scored: {error}"

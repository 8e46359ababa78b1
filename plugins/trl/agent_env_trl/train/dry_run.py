"""One rollout, played by hand the way a trainer would."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent_env_trl.agent_env import AgentEnv

SHOWN = 400
"""Characters of a text that are printed."""


def play(env: AgentEnv, say: Callable[[str], None]) -> float | None:
    """Plays the first row: a reset, no tool, an empty reply. Says what there was to see, and how long each call took.

    Args:
        env: The tasks.
        say: Where to say it, line by line.

    Returns:
        The reward; None when the episode ended unscored, which the log then explains.
    """
    row = env.dataset[0]
    factory = env.factory
    environment: Any = factory[row["environment"]]() if isinstance(factory, dict) else factory()
    say(f"task      {row['task_id']} (split {row['split']}, row {row['index']})")
    for message in row["prompt"]:
        say(f"{message['role']:<9} {_cut(message['content'])}")
    with _timed(say, "reset"):
        environment.reset(**row)
    for name in sorted(name for name in dir(type(environment)) if not name.startswith("_")):
        if name not in ("reset", "get_reward"):
            method = getattr(environment, name)
            say(f"tool      {name}{inspect.signature(method)}: {(inspect.getdoc(method) or '').splitlines()[0]}")
    with _timed(say, "end_turn"):
        answer = environment.end_turn(response="")
    say(f"answer    {_cut(answer)}")
    with _timed(say, "get_reward"):
        reward: float | None = environment.get_reward()
    say("reward    none: the episode ended unscored" if reward is None else f"reward    {reward:g}")
    return reward


@contextmanager
def _timed(say: Callable[[str], None], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    say(f"{name:<9} {time.perf_counter() - start:.2f} s")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"

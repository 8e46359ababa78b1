"""``python -m agent_env_core.server BUNDLE``: what ``AgentEnv.local`` starts. People use ``agent-env serve``."""

from __future__ import annotations

import argparse
import sys

from agent_env_core.server.limits import DEFAULT_SESSIONS
from agent_env_core.server.main import Settings, serve


def _settings(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m agent_env_core.server", description="Serve a bundle's tasks.")
    parser.add_argument("bundle", nargs="?", help="a bundle's folder")
    parser.add_argument("--split", action="append", default=[], metavar="NAME=FOLDER", help="a split of its own bundle")
    parser.add_argument("--sandbox", help="a sandbox provider's name; Docker without it")
    parser.add_argument("--reward", help="a scoring step's id, or a combiner")
    parser.add_argument("--scores-only", action="store_true", help="answer scores, and leave the reward to the trainer")
    parser.add_argument("--max-concurrent-envs", type=int, default=DEFAULT_SESSIONS, help="sessions at once")
    parser.add_argument("--warm", type=int, help="deployments to make ahead; what suits without it")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="the port to listen on; 0 takes a free one")
    parser.add_argument("--parent-fd", type=int, help="stop when this pipe closes")
    parser.add_argument(
        "--shared", action="store_true", help="several processes hold that pipe; go on without the parent"
    )
    parser.add_argument("--ready-fd", type=int, help="write progress and readiness here, as JSON lines")
    given = parser.parse_args(arguments)
    splits = dict(pair.partition("=")[::2] for pair in given.split)
    if (given.bundle is None) == (not splits) or not all(splits.values()):
        parser.error("give either a bundle's folder, or --split NAME=FOLDER for each split")
    return Settings(
        bundle=given.bundle or splits,
        reward=_no_reward if given.scores_only else given.reward,
        sandbox=given.sandbox,
        max_concurrent_envs=given.max_concurrent_envs,
        warm=given.warm,
        host=given.host,
        port=given.port,
        parent_fd=given.parent_fd,
        shared=given.shared,
        ready_fd=given.ready_fd,
    )


def _no_reward(scores: object) -> None:
    """The trainer makes the reward of the scores itself."""


if __name__ == "__main__":
    sys.exit(serve(_settings(sys.argv[1:])))

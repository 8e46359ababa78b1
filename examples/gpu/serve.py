"""Serves GridSim on a host of its own, for a trainer elsewhere."""

import uvicorn

from agent_env.openenv import build_app


def main() -> None:
    """Serves until it's stopped. ``AGENT_ENV_TOKEN`` here and at the trainer keeps others out."""
    uvicorn.run(build_app("bundles/gridsim-v1", max_concurrent_envs=48), host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()

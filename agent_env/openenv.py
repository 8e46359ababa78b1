"""Serve a bundle's tasks as an OpenEnv environment.

>>> app = build_app("bundles/gridsim-v1", max_concurrent_envs=48)
>>> uvicorn.run(app, host="0.0.0.0", port=8000)
"""

from agent_env_core.server.app import build_app

__all__ = ["build_app"]

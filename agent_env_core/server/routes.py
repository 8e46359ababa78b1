"""Our own routes, under a prefix that carries their version: what OpenEnv has no place for."""

from __future__ import annotations

import asyncio
from importlib import metadata
from typing import Any

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from agent_env_core.server.service import Service

API = 1
PREFIX = f"/agent-env/v{API}"


class Abandon(BaseModel):
    """What a client says when it gives an episode up.

    Attributes:
        episode_id: The episode it means; None is whichever runs.
        reason: Why, for the log.
    """

    episode_id: str | None = None
    reason: str = "its client gave it up"


def routes(service: Service) -> APIRouter:
    """The routes of ``service``."""
    router = APIRouter(prefix=PREFIX, tags=["agent-env"])

    @router.get("/info")
    async def info() -> dict[str, Any]:
        """What is served."""
        catalog = service.catalog
        return {
            "api": API,
            "version": metadata.version("agentenv-framework"),
            "name": catalog.name,
            "env_name": catalog.env_name,
            "splits": {split: len(tasks) for split, tasks in catalog.splits.items()},
            "score_ids": list(catalog.score_ids),
            "max_concurrent_envs": service.limit,
            "sessions": len(service.sessions),
            "sandbox": service.engine.sandbox,
            "toolsets": list(catalog.toolsets),
        }

    @router.get("/toolsets")
    async def toolsets(timeout: float = Query(600.0, gt=0, le=86400)) -> dict[str, Any]:
        """The tools of each toolset. Deploys a task of each, the first time."""
        work = service.toolsets.all(service.catalog, timeout)
        # a thread waits, as a session's does: the app's loop and the engine's share no futures
        entries = await asyncio.to_thread(service.engine.call, work, seconds=2 * timeout + 60, phase="deploy")
        return {"toolsets": entries}

    @router.post("/sessions/{key}/abandon")
    async def abandon(key: str, body: Abandon) -> dict[str, bool]:
        """Ends a session's episode at once. The session itself goes on."""
        found = service.sessions.abandon(key, body.reason, body.episode_id)
        if found is None:
            raise HTTPException(404, "no session has this key")
        return {"abandoned": found}

    return router

"""Builds the app that serves a bundle."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agent_env_core import integrity
from agent_env_core.errors import PluginError
from agent_env_core.plugins import plugins
from agent_env_core.sandbox.choose import check_names
from agent_env_core.server.limits import DEFAULT_SESSIONS, allow_files, session_limit, warm_limit

if TYPE_CHECKING:
    from fastapi import FastAPI

    from agent_env_core.sandbox.host import SandboxHost
    from agent_env_core.server.catalog import Path, Reward
    from agent_env_core.server.service import Service

progress = logging.getLogger("uvicorn.error").info
"""Where an app tells what takes long: the log that a server started with ``uvicorn.run(app)`` shows."""


def build_app(
    bundle: Path | Mapping[str, Path],
    *,
    reward: Reward = None,
    sandbox: str | None = None,
    max_concurrent_envs: int = DEFAULT_SESSIONS,
    warm: int | None = None,
) -> FastAPI:
    """An OpenEnv app that serves the tasks of a bundle. Run it with one worker, e.g. ``uvicorn.run(app, port=8000)``.

    Everything is read and checked here; images are built when the app starts, and every episode is torn down when it
    stops. ``AGENT_ENV_TOKEN`` in the environment makes the app ask for that token.

    Args:
        bundle: A bundle's folder, or the name of an installed bundle: its splits are ``all`` and one per eval. Or
            several by split.
        reward: What to make of an episode's scores: None for a task's only one, a step id, a combiner such as
            ``"mean"``, or a function from ``{step id: score}`` to a number or None.
        sandbox: Where envs are deployed: a sandbox provider's name, or several in the order of preference
            (``"docker,process"``), of which the first that can be used here is; None is this machine's Docker.
        max_concurrent_envs: Sessions to allow at once. When it isn't given, ``MAX_CONCURRENT_ENVS`` in the environment
            sets it.
        warm: Deployments to make ahead, so that a reset needn't wait for one; 0 makes none. When it isn't given,
            ``AGENT_ENV_WARM`` in the environment sets it, else what suits the sessions and this machine.

    Raises:
        PluginError: The installation is mixed up, the server's packages are missing, or there's no such provider.
        BundleError: The bundle can't be used; it lists every problem.
        CapacityError: This process may not open as many files as the sessions need.
        ValueError: ``reward`` doesn't fit the tasks, or a number is none.
    """
    integrity.check()
    require_packages()
    return app_of(
        service_for(bundle, reward=reward, sandbox=sandbox, max_concurrent_envs=max_concurrent_envs, warm=warm)
    )


def service_for(
    bundle: Path | Mapping[str, Path],
    *,
    reward: Reward = None,
    sandbox: str | SandboxHost | None = None,
    max_concurrent_envs: int = DEFAULT_SESSIONS,
    warm: int | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Service:
    """The parts of a server, checked and not yet started; takes what :func:`build_app` takes.

    Args:
        bundle: As there.
        reward: As there.
        sandbox: As there, or a host that the caller starts and closes.
        max_concurrent_envs: As there.
        warm: As there.
        on_progress: Told in words what takes long; by default uvicorn's log is.
    """
    from agent_env_core.server.catalog import read_catalog
    from agent_env_core.server.engine import Engine
    from agent_env_core.server.service import Service

    limit, ahead = session_limit(max_concurrent_envs), warm_limit(warm)
    allow_files(limit, ahead)
    plugins().extend()
    if sandbox is None or isinstance(sandbox, str):
        check_names(sandbox)  # an unknown name is refused here, with the names there are
    catalog = read_catalog(bundle, reward)
    engine = Engine(catalog, sandbox=sandbox, sessions=limit, warm=ahead, on_progress=on_progress or progress)
    return Service(catalog, engine, limit)


def require_packages() -> None:
    """Imports OpenEnv, which takes seconds, with a message of our own where something is missing.

    Raises:
        PluginError: The server's packages aren't installed, or don't import.
    """
    try:
        import fastapi  # noqa: F401
        import openenv.core.env_server.http_server  # noqa: F401
    except ImportError as exc:
        raise PluginError(
            f"serving a bundle needs packages that aren't installed ({exc}): pip install 'agentenv-framework[server]'"
        ) from exc


def app_of(service: Service) -> FastAPI:
    """The app over a server's parts. The parts start and stop with the app's lifespan."""
    from fastapi import FastAPI
    from openenv.core.env_server.http_server import HTTPEnvServer
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    from agent_env_core.server.auth import TOKEN_VARIABLE, Guard
    from agent_env_core.server.environment import BundleEnvironment
    from agent_env_core.server.models import EpisodeState, ResetObservation
    from agent_env_core.server.routes import routes
    from agent_env_core.server.sockets import SocketWatch

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.aclose()

    catalog = service.catalog
    app = FastAPI(title=catalog.name, description=catalog.description, version="1.0.0", lifespan=lifespan)
    server = HTTPEnvServer(
        env=functools.partial(BundleEnvironment, service),
        # exactly this class: OpenEnv's MCP routes compare it by identity
        action_cls=CallToolAction,
        observation_cls=CallToolObservation,
        reset_observation_cls=ResetObservation,
        state_cls=EpisodeState,
        env_name=catalog.env_name,
        max_concurrent_envs=service.limit,
    )
    app.include_router(routes(service))
    server.register_routes(app, mode=os.environ.get("OPENENV_MODE", "simulation"))
    app.add_middleware(SocketWatch, sessions=service.sessions)
    app.add_middleware(Guard, token=os.environ.get(TOKEN_VARIABLE))
    return app

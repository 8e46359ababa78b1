"""Deploys the envs of one server: images prepared once, and so many starting at a time as the machine can do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_env_core.envs.deployment import Deployment, DeployOptions, deploy
from agent_env_core.envs.http import HttpClients
from agent_env_core.envs.images import PreparedImage, prepare_image
from agent_env_core.errors import episode_error

if TYPE_CHECKING:
    from agent_env_core.bundle import Env
    from agent_env_core.sandbox.host import SandboxHost


class Deployer:
    """Deploys the envs of one server: images prepared once, and only so many starting at a time.

    What takes long in a deploy is CPU, an env's imports above all. Where sandboxes share this machine, many that start
    side by side are all late, and a few at a time are ready one after another; so they queue here.

    Args:
        host: Makes the sandboxes.
        clients: Makes the HTTP clients; by default what the host's provider needs.
        at_once: How many may be starting; by default twice the cores, or 64 where sandboxes run elsewhere.
    """

    def __init__(self, host: SandboxHost, *, clients: HttpClients | None = None, at_once: int | None = None) -> None:
        self._host = host
        self._clients = clients or HttpClients(remote=host.provider.capabilities.remote)
        here = max(2, 2 * (os.cpu_count() or 1))
        self._starting = asyncio.Semaphore(at_once or (64 if host.provider.capabilities.remote else here))
        self._images: dict[str, PreparedImage] = {}

    async def prepare(self, env: Env) -> PreparedImage:
        """The env's image, prepared at the first call."""
        if env.id not in self._images:
            self._images[env.id] = await prepare_image(env, self._host)
        return self._images[env.id]

    async def deploy(
        self, env: Env, *, step_id: str, options: DeployOptions, waited: Callable[[float], None] = lambda seconds: None
    ) -> Deployment:
        """Deploys an env once there is room; see :func:`deploy`.

        Args:
            env: The env.
            step_id: The step that wants it.
            options: What it asks of the sandbox.
            waited: Told how many seconds it stood in the queue.
        """
        began = time.monotonic()
        try:
            prepared = await self.prepare(env)
        except Exception as exc:
            raise episode_error(exc, "prepare") from exc
        async with self._starting:
            waited(time.monotonic() - began)
            client = self._clients.open()
            try:
                return await deploy(env, prepared, self._host, client, step_id=step_id, options=options)
            except BaseException:
                await client.aclose()
                raise

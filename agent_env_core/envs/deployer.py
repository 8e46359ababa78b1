"""Deploys the envs of one server: images prepared once, and a stock of deployments made ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from agent_env_core.envs.deployment import Deployment, DeployOptions, deploy
from agent_env_core.envs.http import HttpClients
from agent_env_core.envs.images import PreparedImage, prepare_image
from agent_env_core.envs.warm import WarmPool
from agent_env_core.errors import episode_error

if TYPE_CHECKING:
    from agent_env_core.bundle import Env
    from agent_env_core.sandbox.host import SandboxHost
    from agent_env_core.sandbox.limits import Place


class Deployer:
    """Deploys the envs of one server; the one place where an env gets its sandbox.

    What takes long in a deploy is CPU, an env's imports above all. Where sandboxes share this machine, many that start
    side by side are all late, and a few at a time are ready one after another. So a deploy counts as starting from its
    sandbox's creation until the env answers, and waits for its turn with the host.

    Args:
        host: Makes the sandboxes.
        clients: Makes the HTTP clients; by default what the host's provider needs.
        warm: How many deployments to make ahead; see :mod:`agent_env_core.envs.warm`.
    """

    def __init__(self, host: SandboxHost, *, clients: HttpClients | None = None, warm: int = 0) -> None:
        self._host = host
        self._clients = clients or HttpClients(remote=host.provider.capabilities.remote)
        self._images: dict[str, PreparedImage] = {}
        self._roles: dict[str, str | None] = {}  # of the latest session, by env
        self._warm = WarmPool(host, self._deploy_ahead, warm)

    @property
    def warm(self) -> int:
        """How many sandboxes there are that no episode has."""
        return len(self._warm)

    async def prepare(self, env: Env) -> PreparedImage:
        """The env's image, prepared at the first call."""
        if env.id not in self._images:
            self._images[env.id] = await prepare_image(env, self._host)
        return self._images[env.id]

    async def deploy(
        self, env: Env, *, step_id: str, options: DeployOptions, waited: Callable[[float], None] = lambda seconds: None
    ) -> Deployment:
        """An env for one episode: one that was made ahead, or deployed now, once there is room; see :func:`deploy`.

        Args:
            env: The env.
            step_id: The step that wants it.
            options: What it asks of the sandbox.
            waited: Told how many seconds it stood in the queue.
        """
        began = time.monotonic()
        try:
            await self.prepare(env)
        except Exception as exc:
            raise episode_error(exc, "prepare") from exc
        deployment = await self._warm.take(env, options)
        if deployment is None:
            with self._warm.cold():
                try:
                    place = await self._host.place()
                except Exception as exc:
                    raise episode_error(exc, "queue") from exc
                try:
                    waited(time.monotonic() - began)
                    deployment = await self._deploy(env, options, place)
                finally:
                    place.leave()
        deployment.step_id = step_id
        return deployment

    async def aclose(self) -> None:
        """Ends what no episode has taken."""
        await self._warm.aclose()

    async def _deploy_ahead(self, env: Env, options: DeployOptions, place: Place) -> Deployment:
        """Deploys one for nobody yet, and opens the MCP session that whoever takes it will want, if others did."""
        roles = [self._roles[env.id]] if env.id in self._roles else []
        return await self._deploy(env, options, place, roles)

    async def _deploy(
        self, env: Env, options: DeployOptions, place: Place, roles: Sequence[str | None] = ()
    ) -> Deployment:
        prepared = await self.prepare(env)
        client = self._clients.open()
        try:
            deployment = await deploy(
                env, prepared, self._host, client, step_id="", options=options, place=place, roles=roles
            )
        except BaseException:
            await client.aclose()
            raise
        deployment.opened = partial(self._roles.__setitem__, env.id)
        return deployment

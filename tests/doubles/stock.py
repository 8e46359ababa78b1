"""A deployer over sandboxes that are made up, and what tests ask of its deployments made ahead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from agent_env_core.bundle import Env, EnvImage
from agent_env_core.envs.deployer import Deployer
from agent_env_core.envs.deployment import Deployment, DeployOptions
from agent_env_core.envs.http import HttpClients
from agent_env_core.errors import Gone
from agent_env_core.sandbox.host import SandboxHost
from agent_env_core.testing.fake import FakeProvider

CARD = {"name": "quay", "additionalInterfaces": [{"url": "/tools", "transport": "mcp"}]}
OPTIONS = DeployOptions(ttl=60.0)


def env(name: str = "q") -> Env:
    image = EnvImage(ref="docker.io/q")
    return Env(
        f"@local/{name}", name=name, type="mcp_server", environment_name="quay", env_provider_type="gateway",
        image=image, path=Path("/q"),
    )  # fmt: skip


class Quay(FakeProvider):
    """A provider whose sandboxes answer with a card, and to MCP, for as long as they live.

    Attributes:
        methods: The MCP methods that each was asked for.
        forgets: Those that don't know their sessions any more.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.methods: dict[str, list[str]] = {}
        self.forgets: set[str] = set()

    async def image_command(self, prepared: str) -> tuple[str, ...]:
        return ("serve",)

    def answer(self, request: httpx.Request) -> httpx.Response:
        name = request.url.host.removesuffix(".invalid")
        try:
            self.sandboxes[name].check()
        except (KeyError, Gone) as exc:
            raise httpx.ConnectError("nobody listens") from exc
        if request.method != "POST":
            return httpx.Response(200, json=CARD)
        message = json.loads(request.content)
        self.methods.setdefault(name, []).append(message["method"])
        if name in self.forgets and message["method"] != "initialize":
            return httpx.Response(404)
        return httpx.Response(200, json={"jsonrpc": "2.0", "id": message.get("id"), "result": {}})


class Clients(HttpClients):
    """Clients that reach no network, only these sandboxes."""

    def __init__(self, fake: Quay) -> None:
        self._fake = fake

    def open(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._fake.answer))


class Stock:
    """A deployer over a fake provider, and what tests ask of it."""

    def __init__(self, warm: int, fake: Quay, **limits: Any) -> None:
        self.fake = fake
        self.host = SandboxHost(fake, **limits)
        self.deployer = Deployer(self.host, clients=Clients(fake), warm=warm)
        self.pool = self.deployer._warm
        self.taken: list[Deployment] = []

    async def deploy(self, of: Env | None = None, options: DeployOptions = OPTIONS, **more: Any) -> Deployment:
        found = await self.deployer.deploy(of or env(), step_id="step", options=options, **more)
        self.taken.append(found)
        return found

    async def end(self, deployment: Deployment) -> None:
        self.taken.remove(deployment)
        await self.host.destroy(deployment.sandbox.id)
        await deployment.close()

    async def ready(self, count: int) -> list[str]:
        """Waits until so many are there and no more are coming; their sandboxes."""
        async with asyncio.timeout(20):
            while True:
                kept = self.pool._kept
                if len(self.pool) == count == len(kept) and all(one.ready for one in kept):
                    return [one.made.result().sandbox.id for one in kept]
                await asyncio.sleep(0.002)

    async def coming(self) -> None:
        """Waits until one is under way."""
        async with asyncio.timeout(20):
            while not any(not one.ready for one in self.pool._kept):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)

    async def quiet(self) -> None:
        """Lets what has been set going come to rest."""
        for _ in range(20):
            await asyncio.sleep(0.001)

    async def live(self, count: int) -> None:
        """Waits until so many sandboxes are left: what the provider had begun is undone behind."""
        async with asyncio.timeout(20):
            while self.host.live > count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)

    async def aclose(self) -> None:
        await self.deployer.aclose()
        for deployment in list(self.taken):
            await self.end(deployment)
        await self.live(0)
        assert self.fake.sandboxes == {}
        assert await self.host.aclose() == []


Open = Callable[..., Awaitable[Stock]]

"""What every cloud's tests ask of an account that allows only so many sandboxes at once."""

from __future__ import annotations

import asyncio

from agent_env_core.sandbox.contract import Image, SandboxProvider, SandboxSpec
from agent_env_core.sandbox.host import SandboxHost


async def sixty_four_rollouts(provider: SandboxProvider, base: Image, at_once: int) -> None:
    """Plays 64 rollouts at once; each gets a sandbox, has its own answer, and ends it.

    None ends before there were ``at_once`` sandboxes: so many must be had however long each takes to start.
    """
    host = SandboxHost(provider, run_id="rollouts", max_starting=64)
    image = await host.prepare(base)
    full, held = asyncio.Event(), 0

    async def rollout(number: int) -> bytes:
        nonlocal held
        box = await host.create(SandboxSpec(image=image, ttl=120))
        try:
            held += 1
            if held == at_once:
                full.set()
            await full.wait()
            return (await box.exec(["echo", str(number)])).stdout
        finally:
            await host.destroy(box.id)

    said = await asyncio.gather(*(rollout(number) for number in range(64)))
    assert said == [f"{number}\n".encode() for number in range(64)]
    await host.aclose()

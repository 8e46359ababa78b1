"""Envs that are made of others: a sandbox for each child, and one env towards the task.

Nothing stands in between: a call goes to the server that has the tool. Access rules, triggers and the clock are the
env's, not a server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_env_core.envs.card import MCP_PATH, Card
from agent_env_core.envs.deployment import Deployment
from agent_env_core.envs.direct import DirectTools
from agent_env_core.envs.gateway import Gateway
from agent_env_core.errors import EpisodeError

if TYPE_CHECKING:
    from agent_env_core.bundle import Env


async def compose(env: Env, step_id: str, children: Sequence[Deployment]) -> tuple[Deployment, Gateway]:
    """One env of several deployed servers, and what answers at its address; that is the caller's to close.

    Its sandbox and client are those of its first server.

    Raises:
        EpisodeError: Of phase ``deploy``: two of the servers offer a tool of one name, or one can't list its tools.
    """
    first = children[0]
    card = Card(env.environment_name, MCP_PATH, {}, tuple(child.card for child in children), frozenset())
    whole = Deployment(env, step_id, first.sandbox, card, "", {}, first.client, children=tuple(children))
    try:
        tools = await DirectTools.open(whole)
        try:
            gateway = await Gateway.open(whole, tools)
        except BaseException:
            await tools.close()
            raise
    except EpisodeError as exc:
        raise EpisodeError("deploy", f"the env {env.name!r}: {exc.reason}", retryable=exc.retryable) from exc
    whole.base_url = gateway.url
    return whole, gateway

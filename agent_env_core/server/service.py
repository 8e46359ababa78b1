"""What the parts of one server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_env_core.server.catalog import Catalog
from agent_env_core.server.engine import Engine
from agent_env_core.server.sessions import Sessions
from agent_env_core.server.toolsets import Toolsets


@dataclass
class Service:
    """A server's parts.

    Attributes:
        catalog: What is served; once started, without what can't be deployed.
        engine: Where episodes run.
        limit: How many sessions are allowed at once.
        toolsets: The tools of each toolset.
        sessions: Those there are.
    """

    catalog: Catalog
    engine: Engine
    limit: int
    toolsets: Toolsets = field(init=False)
    sessions: Sessions = field(default_factory=Sessions)

    def __post_init__(self) -> None:
        self.toolsets = Toolsets(self.engine)

    async def start(self) -> None:
        """Prepares everything; tasks that can't be deployed here are left out from then on. Idempotent.

        Raises:
            BundleError: None is left.
            AgentEnvError: The sandbox provider, or the verifiers, can't be used here.
        """
        self.catalog = self.catalog.without(await self.engine.start())

    async def aclose(self) -> list[str]:
        """Ends every episode; returns what is left behind, in words."""
        return await self.engine.aclose()

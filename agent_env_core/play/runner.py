"""What a server keeps for all its episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_env_core.bundle import Bundle
    from agent_env_core.play.spec import EpisodeSpec
    from agent_env_core.sandbox.host import SandboxHost


class Runner:
    """Everything on one event loop."""

    specs: Mapping[str, EpisodeSpec]  # task id -> what is served, after start()
    left_out: Mapping[str, str]  # task id -> why it isn't served

    def __init__(
        self,
        bundle: Bundle,
        *,
        sandbox: str | SandboxHost | None = None,
        verifier_timeout: float = 300.0,
        on_progress: Callable[[str], None] | None = None,
    ) -> None: ...
    async def start(self) -> None: ...
    async def aclose(self) -> None: ...

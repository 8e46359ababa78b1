"""Registers the provider ``e2b``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_env_core.hookspecs import hookimpl
from agent_env_core.sandbox.settings import require_sdk
from agent_env_e2b.settings import Settings

if TYPE_CHECKING:
    from agent_env_core.sandbox.contract import SandboxProvider


class Factory:
    """Makes the provider; ``agent-env sandbox show e2b`` reads its settings from here."""

    settings_model = Settings

    def __call__(self, config: Mapping[str, Any]) -> SandboxProvider:
        """A provider with these settings.

        Raises:
            ConfigError: A wrong setting, no SDK, or no API key.
        """
        from agent_env_e2b.provider import E2BProvider, require_key

        settings = Settings.read("e2b", config)
        require_sdk("e2b", "e2b")
        require_key()
        return E2BProvider(settings)


@hookimpl
def agent_env_sandbox_providers(
    register: Callable[[str, Callable[[Mapping[str, Any]], SandboxProvider]], None],
) -> None:
    """Registers ``e2b``."""
    register("e2b", Factory())
